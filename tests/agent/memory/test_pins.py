"""Whatever pod is lost, all ranks have a step in common, however far copies lag behind."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everstep.agent.memory.agreement import NONE, Agreement, Progress, combined
from everstep.agent.memory.copies import Copies
from everstep.core.recovering import snapshots
from everstep.core.world import PodState, PodView, RankSnapshot
from everstep.protocol import rank_memory, wire
from everstep.protocol.rank_memory import PAGE, Pinned, Pins, SnapshotHeader
from everstep.train.buffers import Buffers
from everstep.train.pinning import Pinning
from everstep.train.states import flat

RUN = 1
CONTENT = b"state"


@dataclass
class Sending:
    step: int
    newest: int
    pinned: list[int]
    left: int  # times that the sender is given before it is done


@dataclass
class PodModel:
    """A pod of one rank, its agent, and what both do to their memory."""

    slot: int
    to: int  # slot of its neighbour
    agreement: Agreement
    pinning: Pinning = field(default_factory=Pinning)
    memory: bytearray = field(default_factory=lambda: bytearray(PAGE))  # of the position
    buffers: list[int] = field(default_factory=list)  # the step of each snapshot
    copies: Copies = field(default_factory=Copies)
    sent: set[int] = field(default_factory=set)
    sending: Sending | None = None
    step: int = 0

    @property
    def pinned(self) -> Pinned | None:
        pinned = rank_memory.read_pinned(self.memory)
        return (
            pinned if pinned is not None and pinned.number == self.agreement.pins.number else None
        )

    def look(self) -> None:
        at, content = rank_memory.pins_bytes(RUN, self.agreement.pins)
        self.memory[at : at + len(content)] = content
        newest = max(self.buffers, default=None)
        pinned = self.pinned
        step = None if pinned is None else pinned.step
        if pinned is None or newest is None:
            progress = Progress(newest=newest)
        elif step is None or step not in self.buffers:
            is_missed = step is not None and newest > step
            progress = Progress(is_missed=is_missed, newest=newest)
        else:
            progress = Progress(done=int(step in self.sent), step=step, newest=newest)
        self.agreement.set_progress(progress)


class Model:
    """A training in which no rank is more than a step ahead, and anything else takes any time."""

    def __init__(self, neighbours: tuple[int, ...], *, pins: bool, sends: int) -> None:
        leads = neighbours[0]
        self.pods = [
            PodModel(slot, to, Agreement(len(neighbours), leads=slot == leads))
            for slot, to in enumerate(neighbours)
        ]
        self.pins, self.sends = pins, sends

    def snapshot(self, pod: PodModel) -> None:
        if pod.step > min(one.step for one in self.pods):
            return  # it waits for the others
        pod.step += 1
        pod.pinning.take(pod.step, rank_memory.read_pins(pod.memory))
        if pod.pinning.pinned is not None:
            rank_memory.write_pinned(pod.memory, pod.pinning.pinned)
        free = rank_memory.overwritable(pod.buffers, pod.pinning.steps)
        if len(pod.buffers) < rank_memory.BUFFERS or not free:
            pod.buffers.append(pod.step)
            assert len(pod.buffers) <= rank_memory.BUFFERS_MOST
        else:
            pod.buffers[free[0]] = pod.step

    def send(self, pod: PodModel, chance: Random) -> None:
        """Begin, go on or end sending."""
        if pod.sending is None:
            step = None if pod.pinned is None else pod.pinned.step
            to_send = [one for one in pod.buffers if one in (step, max(pod.buffers))]
            lacking = sorted(one for one in to_send if one not in pod.sent)
            if lacking:
                pinned = [one for one in (pod.agreement.pins.step, step) if one is not None]
                left = chance.randint(1, self.sends)
                pod.sending = Sending(lacking[0], max(pod.buffers), pinned, left)
                self._part(pod, pod.sending, is_last=False)
            return
        pod.sending.left -= 1
        if pod.sending.step not in pod.buffers:
            pod.sending = None
        elif pod.sending.left <= 0:
            self._part(pod, pod.sending, is_last=True)
            pod.sent.add(pod.sending.step)
            pod.sending = None

    def _part(self, pod: PodModel, sending: Sending, *, is_last: bool) -> None:
        content = CONTENT[2:] if is_last else CONTENT[:2]
        part: wire.CopyPart = {
            "to": "",
            "run": RUN,
            "rank": pod.slot,
            "world": len(self.pods),
            "step": sending.step,
            "generation": RUN,
            "index_bytes": 0,
            "content_bytes": len(CONTENT),
            "age_s": 0.0,
            "offset": 2 if is_last else 0,
            "checksum": zlib.crc32(CONTENT) if is_last else None,
            "newest": sending.newest,
            "pinned": sending.pinned,
        }
        self.pods[pod.to].copies.take(part, memoryview(content))

    def report(self, pod: PodModel) -> None:
        if not self.pins:
            return
        pod.look()
        other = self.pods[pod.to]
        other.look()
        other.agreement.take_report(pod.slot, pod.agreement.pins, pod.agreement.report())
        other.look()
        pod.agreement.adopt(other.agreement.pins)
        pod.look()

    def view(self, pod: PodModel) -> PodView:
        held = tuple(RankSnapshot(step, pod.slot, len(self.pods), RUN, 0.0) for step in pod.buffers)
        copies = tuple(
            RankSnapshot(one["step"], one["rank"], one["world"], one["generation"], 0.0)
            for one in pod.copies.state()
        )
        state = PodState.STOPPED
        return PodView(slot=pod.slot, node="n", uid="u", state=state, snapshots=held, copies=copies)

    def without(self, lost: set[int]) -> int | None:
        """The step from which all ranks go on once these pods are lost."""
        pods = [
            view._replace(snapshots=(), copies=()) if view.slot in lost else view
            for view in map(self.view, self.pods)
        ]
        node_ranks = {pod.slot: pod.slot for pod in self.pods}
        newest = snapshots.newest_common(pods, node_ranks, 1)
        return None if newest is None else newest.step

    def close(self) -> None:
        for pod in self.pods:
            pod.copies.keep_only(None, run=RUN + 1)


RINGS = {
    "two": ((1, 0), [{0}, {1}]),
    "three": ((1, 2, 0), [{0}, {1}, {2}]),
    "two on each node": ((2, 2, 0, 0), [{0, 1}, {2, 3}]),
    "the first and the last on one node": ((1, 2, 4, 4, 1), [{0, 4}, {1}, {2, 3}]),
}
"""The neighbour of each slot, and the slots of each node."""


def course(model: Model, seed: int, actions: int, *, snapshots: int = 4) -> Iterator[None]:
    """What the pods do, in any order; some pods are slow for a while. `snapshots`: their share."""
    chance = Random(seed)
    busy: dict[int, int] = {}  # by slot: its agent gets no time for so many actions
    for _ in range(actions):
        pod = chance.choice(model.pods)
        if chance.random() < 0.01:
            busy[pod.slot] = chance.randint(10, 200)
        busy = {slot: left - 1 for slot, left in busy.items() if left > 1}
        what = chance.choices(("snapshot", "send", "report"), weights=(snapshots, 6, 4))[0]
        if what == "snapshot":
            model.snapshot(pod)
        elif pod.slot not in busy:
            model.send(pod, chance) if what == "send" else model.report(pod)
        yield


def is_pinned(model: Model) -> bool:
    return any(pod.agreement.pins.step is not None for pod in model.pods)


@settings(max_examples=15)
@given(ring=st.sampled_from(sorted(RINGS)), sends=st.integers(1, 30), seed=st.integers(0, 2**32))
@example(ring="two", sends=30, seed=0)
def test_a_step_of_all_ranks_is_left_whichever_node_is_lost(
    ring: str, sends: int, seed: int
) -> None:
    neighbours, nodes = RINGS[ring]
    model = Model(neighbours, pins=True, sends=sends)
    try:
        for _ in course(model, seed, 400):
            if is_pinned(model):
                assert None not in [model.without(lost) for lost in nodes]
    finally:
        model.close()


def lost_in(model: Model, nodes: list[set[int]], actions: int) -> int:
    """How often in the second half of a course no step would be left if the first node were lost."""
    return [model.without(nodes[0]) for _ in course(model, 1, actions)][actions // 2 :].count(None)


def test_without_pins_copies_that_lag_leave_no_step() -> None:
    for pins, is_safe in ((False, False), (True, True)):
        model = Model(RINGS["two"][0], pins=pins, sends=20)
        assert (lost_in(model, RINGS["two"][1], 1000) == 0) is is_safe
        model.close()


@pytest.mark.parametrize("ring", sorted(RINGS))
def test_what_is_pinned_moves_on_where_steps_are_faster_than_reports(ring: str) -> None:
    """Ranks are past the step that is named before they read of it, until one is far enough ahead."""
    model = Model(RINGS[ring][0], pins=True, sends=20)
    course_of_it = course(model, 1, 8000, snapshots=50)
    pinned = {model.pods[0].agreement.pins.step for _ in course_of_it} - {None}
    model.close()
    assert len(pinned) > 1


@pytest.mark.parametrize(
    ("why", "parts", "total"),
    [
        ("none is done", [NONE, Progress(newest=3)], Progress(newest=3)),
        ("all have one", [Progress(1, 5, False, 7), Progress(1, 5, False, 6)], Progress(2, 5, False, 7)),
        ("one has another", [Progress(1, 5), Progress(1, 6)], Progress(2, 6, True)),
        ("one lost it", [Progress(1, 5), Progress(is_missed=True)], Progress(1, 5, True)),
    ],
)  # fmt: skip
def test_the_progress_of_several(why: str, parts: list[Progress], total: Progress) -> None:
    assert combined(parts) == total, why


def test_what_is_written_while_it_is_read_is_not_taken() -> None:
    memory = bytearray(PAGE)
    assert (rank_memory.read_pins(memory), rank_memory.read_pinned(memory)) == (None, None)
    at, content = rank_memory.pins_bytes(RUN, Pins(2, 7, 9))
    for cut in range(len(content)):
        memory[at : at + cut] = content[:cut]
        assert rank_memory.read_pins(memory) is None
    memory[at : at + len(content)] = content
    assert rank_memory.read_pins(memory) == (RUN, Pins(2, 7, 9))
    rank_memory.write_pinned(memory, Pinned(RUN, 2, None))
    assert rank_memory.read_pinned(memory) == Pinned(RUN, 2, None)


def test_a_script_that_goes_back_begins_to_pin_anew() -> None:
    agreement = Agreement(1, leads=True)
    for newest, done in ((5, None), (6, 6), (7, None), (3, None)):
        number = agreement.pins.number
        progress = Progress(int(done is not None), done, newest=newest)
        agreement.take_report(0, Pins(number), progress)
    assert (agreement.pins.step, agreement.pins.next_from) == (None, 4)


class TakesAll:
    """The link to an agent that holds every buffer."""

    def __init__(self) -> None:
        self.held: set[int] = set()

    def keep(self, index: int, handle: int) -> None:
        assert handle >= 0
        self.held.add(index)

    def release(self, index: int) -> None:
        self.held.discard(index)


def written(buffers: Buffers, step: int, *, pinned: set[int]) -> list[int]:
    """The steps that the rank has once it has written this one."""
    buffer = buffers.for_content(1000, pinned=pinned)
    buffer.write(SnapshotHeader(step, RUN, 0, 1, 0, 0, 0.0), flat(None))
    return sorted(one.step for one in buffers.held)


def test_buffers_for_pinned_snapshots_are_made_when_copies_lag_and_released_when_they_do_not() -> (
    None
):
    link = TakesAll()
    buffers = Buffers([], link, shares=1, note=pytest.fail)  # type: ignore[arg-type]  # a double
    try:
        assert [written(buffers, step, pinned=set()) for step in (1, 2, 3)][-1] == [2, 3]
        assert [written(buffers, step, pinned={3, 5}) for step in range(4, 9)][-1] == [3, 5, 7, 8]
        later = [written(buffers, step, pinned={step - 1}) for step in range(9, 100)]
        assert [held[-2:] for held in later] == [[step - 1, step] for step in range(9, 100)]
        assert later[-1] == [98, 99]
        assert len(link.held) == rank_memory.BUFFERS
    finally:
        for buffer in buffers.held:
            buffer.close()


def test_without_memory_for_more_the_newest_two_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    buffers = Buffers([], TakesAll(), shares=1, note=notes.append)  # type: ignore[arg-type]  # a double
    try:
        assert [written(buffers, step, pinned={2}) for step in (1, 2)][-1] == [1, 2]
        monkeypatch.setattr("everstep.train.buffers.free_bytes", lambda: 10_000)
        assert [written(buffers, step, pinned={2}) for step in (3, 4)][-1] == [3, 4]
    finally:
        for buffer in buffers.held:
            buffer.close()
    assert notes[0].startswith("keeps its newest two snapshots and no older one: it needs 0 MB")


def test_copies_for_pinned_snapshots_are_released_when_they_are_idle() -> None:
    model = Model((1, 0), pins=False, sends=1)
    pod, holder = model.pods

    def send(step: int, *pinned: int) -> list[int]:
        sending = Sending(step, step, [*pinned], 0)
        for is_last in (False, True):
            model._part(pod, sending, is_last=is_last)
        return sorted(one["step"] for one in holder.copies.state())

    assert [send(step, 3, 5) for step in (3, 4, 5, 6, 7)][-1] == [3, 5, 6, 7]
    later = [send(step, step - 1) for step in range(8, 100)]
    model.close()
    assert [held[-2:] for held in later] == [[step - 1, step] for step in range(8, 100)]
    assert later[-1] == [98, 99]
