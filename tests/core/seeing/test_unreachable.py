"""Rule 2: unknown is not failed. When silence is only waited for, and when it is a lost node."""

from __future__ import annotations

import pytest

from everstep.core.levels import FaultClass, Level, Step
from everstep.core.seeing import watching
from everstep.core.seeing.watch_report import WatchReport, pod_seen
from everstep.core.seeing.watching import PollAll, WaitFor, Watch
from everstep.core.state import Learned
from everstep.core.world import Observation, PodState, PodView
from everstep.protocol.exits import Exit, RankExit
from tests.support.builders import fact, pod, running, sighting, watch_order

STEPS = Learned(steps_seen=True, longest_gap_s=1.0, first_step_at=1.0)


def look(
    *pods: PodView,
    now: float,
    learned: Learned = STEPS,
    unreachable: tuple[int, ...] = (),
    seen_ids: frozenset[str] = frozenset(),
) -> WaitFor | PollAll | WatchReport:
    slots = (p.slot for p in pods)
    order = watch_order(*slots, learned=learned, unreachable=unreachable, seen_ids=seen_ids)
    observation = Observation(now=now, cursor="1", pods=pods, generation=1)
    return watching.check(order, Watch(learned=learned, has_polled=True), observation)[1]


def kinds(watch_result: WaitFor | PollAll | WatchReport) -> list[str]:
    return [f.kind for f in watch_result.facts] if isinstance(watch_result, WatchReport) else []


def alive(slot: int, now: float) -> PodView:
    return pod(slot, step=9, step_at=now)


def silent(slot: int, since: float = 100.0) -> PodView:
    return pod(slot, silent_since=since, step=9, step_at=since)


def still(slot: int, since: float = 100.0) -> PodView:
    return pod(slot, step=9, step_at=since)


# who is silent, who stands still, when we look, what is said
ROWS: tuple[tuple[str, str, str, float, list[str]], ...] = (
    ("(a) most are silent: unreachable", "sss.", "", 160.0, ["unreachable.agent"] * 3),
    ("(a) most are silent and the rest still: unreachable", "sss.", ".", 9_000.0, ["unreachable.agent"] * 3),
    ("(a) the only one is silent: unreachable", "s", "", 9_000.0, ["unreachable.agent"]),
    ("(b) one is silent, the others step: unreachable", "...s", "", 160.0, ["unreachable.agent"]),
    ("(b) half are silent, the others step: unreachable", "..ss", "", 900.0, ["unreachable.agent"] * 2),
    ("one is silent for a moment: nothing", "...s", "", 159.0, []),
    ("(c) one is silent, the others still: lost", "...s", "still", 160.0, ["node.silent"]),
    ("(c) half are silent, the others still: lost", "..ss", "still", 160.0, ["node.silent"] * 2),
)  # fmt: skip


@pytest.mark.parametrize(
    ("who", "other_pods", "now", "expected"),
    [row[1:] for row in ROWS],
    ids=[f"2{row[0]}" for row in ROWS],
)
def test_silence_is_judged_by_who_else_goes_on(
    who: str, other_pods: str, now: float, expected: list[str]
) -> None:
    other = 100.0 if other_pods else now
    pods = tuple(silent(n) if sign == "s" else alive(n, other) for n, sign in enumerate(who))
    assert kinds(look(*pods, now=now)) == expected


def test_the_others_may_take_three_of_their_longest_gaps() -> None:
    slow = Learned(steps_seen=True, longest_gap_s=100.0, first_step_at=1.0)
    pods = (still(0), still(1), still(2), silent(3))
    assert kinds(look(*pods, now=399.0, learned=slow)) == ["unreachable.agent"]
    assert kinds(look(*pods, now=400.0, learned=slow)) == ["node.silent"]


def test_where_no_step_was_ever_seen_everybody_else_has_to_be_motionless() -> None:
    busy = [pod(n, moved_at=150.0) for n in range(3)]
    silent_pod = pod(3, silent_since=100.0)
    assert kinds(look(*busy, silent_pod, now=209.0, learned=Learned())) == ["unreachable.agent"]
    assert kinds(look(*busy, silent_pod, now=210.0, learned=Learned())) == ["node.silent"]


def test_where_all_others_have_ended_the_silent_one_is_lost() -> None:
    ended = [pod(n, exits=(RankExit(n, 100.0, Exit(code=0)),)) for n in range(3)]
    silent_pod = pod(3, silent_since=100.0)
    assert kinds(look(*ended, silent_pod, now=160.0, learned=Learned())) == ["node.silent"]


def test_a_slot_known_to_be_unreachable_is_waited_for_without_limit() -> None:
    pods = (silent(0), silent(1), silent(2), alive(3, 9_000.0))
    watch_result = look(*pods, now=3_000.0, unreachable=(0, 1, 2))
    assert isinstance(watch_result, WaitFor)


def test_an_unreachable_slot_is_not_back_before_it_answered_this_worker() -> None:
    unheard = pod(3, generation=0)._replace(state=PodState.PENDING)
    watch_result = look(
        alive(0, 500.0), alive(1, 500.0), alive(2, 500.0), unheard, now=500.0, unreachable=(3,)
    )
    assert isinstance(watch_result, WaitFor)


def test_an_unreachable_slot_that_answers_again_is_news() -> None:
    watch_result = look(*(alive(n, 500.0) for n in range(4)), now=500.0, unreachable=(3,))
    assert isinstance(watch_result, WatchReport)
    assert watch_result.news == "back"


def test_silence_that_was_only_noted_is_not_told_for_ever() -> None:
    pods = (still(0), still(1), still(2), silent(3))
    watch_result = look(*pods, now=160.0)
    assert isinstance(watch_result, WatchReport)
    again = look(*pods, now=160.0, seen_ids=frozenset(f.id for f in watch_result.facts))
    assert isinstance(again, WaitFor)


def test_a_silence_soon_after_another_is_told_like_the_first() -> None:
    """By a clock that counts from 1970, as real ones do."""
    base = 1_790_000_000.0

    def look_since(
        since: float, *, last_report: WatchReport | None
    ) -> WaitFor | PollAll | WatchReport:
        pods = (*(alive(n, since + 60) for n in range(3)), silent(3, since))
        fact_ids = (
            frozenset(f.id for f in last_report.facts) if last_report is not None else frozenset()
        )
        return look(*pods, now=since + 60, seen_ids=fact_ids)

    first = look_since(base, last_report=None)
    assert isinstance(first, WatchReport)
    assert kinds(look_since(base + 100, last_report=first)) == ["unreachable.agent"]


@pytest.mark.parametrize("kind", ["process.exit", "device.fault"])
def test_beside_an_old_fact_a_silent_slot_has_its_time_to_answer(kind: str) -> None:
    """A worker that was away for long, or a device that was broken for days, says nothing of the silence."""
    order = watch_order(0, 1, learned=STEPS)
    pods = (pod(0, step=9, step_at=99.0), silent(1, since=9_990.0))
    old = fact(kind, at=100.0, node="n0", slot=0, device=0)
    facts = (old, fact("process.exit", at=9_991.0, slot=0, generation=1))

    def seen_at(now: float) -> WaitFor | PollAll | WatchReport:
        observation = Observation(now=now, cursor="1", pods=pods, facts=facts, generation=1)
        return watching.check(order, Watch(learned=STEPS, has_polled=True), observation)[1]

    assert seen_at(9_999.0) == WaitFor(until=10_050.0)
    assert "node.silent" in kinds(seen_at(10_050.0))


@pytest.mark.parametrize(
    ("silent_slots", "expected"),
    [((2, 3), ["process.exit", "node.silent", "node.silent"]), ((1, 2, 3), ["process.exit"])],
    ids=["half", "most"],
)
def test_beside_a_crash_no_slot_is_lost_where_most_are_silent(
    silent_slots: tuple[int, ...], expected: list[str]
) -> None:
    """The way to them may be broken. The crash is answered, once they had their time."""
    order = watch_order(0, 1, 2, 3, learned=STEPS)
    pods = tuple(silent(n) if n in silent_slots else alive(n, 100.0) for n in range(4))
    crash = fact("process.exit", at=100.0, slot=0, generation=1)

    def look_at(now: float) -> WaitFor | PollAll | WatchReport:
        observation = Observation(now=now, cursor="1", pods=pods, facts=(crash,), generation=1)
        return watching.check(order, Watch(learned=STEPS, has_polled=True), observation)[1]

    assert look_at(159.0) == WaitFor(until=160.0)
    assert kinds(look_at(160.0)) == expected


def test_unreachable_stops_nothing_and_bills_nothing() -> None:
    job = running()
    decision = job.see(sighting(FaultClass.UNREACHABLE))
    assert (decision.level, decision.bills, job.records) == (Level.NOTE, {}, ())
    assert job.state.unreachable == (1,)
    waiting = job.state.waiting
    assert waiting is not None
    assert waiting.what == "an answer from n1"
    job.report("back")
    assert not job.state.unreachable


@pytest.mark.parametrize("cls", [FaultClass.CRASH, FaultClass.HANG])
def test_a_slot_that_does_not_confirm_its_stop_gets_a_new_pod_alone_without_isolation(
    cls: FaultClass,
) -> None:
    job = running()
    job.see(sighting(cls))
    decision = job.fails("agent.unreachable", at=Step.STOP, slot=2)
    assert (decision.level, decision.remedy.recreate, decision.remedy.isolate) == (
        Level.POD,
        (2,),
        (),
    )
    assert job.records[0].result == "downgrade"


def test_with_a_faulty_device_elsewhere_that_node_is_left_too() -> None:
    job = running()
    job.see(sighting(FaultClass.DEVICE))
    decision = job.fails("agent.unreachable", at=Step.STOP, slot=2)
    assert (decision.level, decision.remedy.recreate) == (Level.POD, (1, 2))
    assert [i.node for i in decision.remedy.isolate] == ["n1"]


def test_two_silent_slots_do_not_keep_the_job_at_pod_level_for_ever() -> None:
    job = running()
    job.see(sighting(FaultClass.CRASH))
    assert job.fails("agent.unreachable", at=Step.STOP, slot=2).level is Level.POD
    assert job.fails("agent.unreachable", at=Step.STOP, slot=3).level is Level.JOB


def test_a_container_that_is_gone_on_a_sound_node_is_a_crash_with_in_place_passed_over() -> None:
    job = running()
    lost = fact("agent.gone", slot=2)
    decision = job.see(lost, lost_containers=(2,))
    assert (decision.fault.cls, decision.level) == (FaultClass.CRASH, Level.POD)
    assert decision.remedy.recreate == (2,)
    assert decision.passed_over == ("in_place: the container of slot 2 is gone",)


@pytest.mark.parametrize("cls", [FaultClass.STORAGE, FaultClass.CHECKPOINT])
def test_a_container_that_is_gone_is_replaced_where_the_ladder_knows_no_pod_level(
    cls: FaultClass,
) -> None:
    decision = running().see(sighting(cls), lost_containers=(2,))
    assert decision.is_executed
    assert (decision.remedy.recreate, Step.PLACE in decision.remedy.steps) == ((2,), True)
    assert (Step.WRITABLE in decision.remedy.steps) == (cls is FaultClass.STORAGE)


def test_all_slots_that_do_not_confirm_are_replaced_at_once() -> None:
    job = running()
    job.see(sighting(FaultClass.STORAGE))
    decision = job.fails("agent.unreachable", at=Step.STOP, slot=2, lost_containers=(2, 3))
    assert (decision.level, decision.remedy.recreate) == (Level.POD, (2, 3))


@pytest.mark.parametrize("cls", [FaultClass.NODE, FaultClass.STORAGE, FaultClass.PREEMPTED])
def test_a_new_container_that_dies_before_its_start_is_made_again_a_few_times(
    cls: FaultClass,
) -> None:
    job = running()
    job.see(sighting(cls))
    levels = []
    while job.decisions[-1].is_executed:
        job.fails("pod.gone", at=job.plan.remedy.steps[-1], slot=1, lost_containers=(1,))
        levels.append(job.decisions[-1].level)
    assert 3 <= len(levels) <= 10
    assert levels[-1] is Level.FAIL


def test_a_second_silent_slot_is_waited_for_beside_the_first_until_both_answer() -> None:
    job = running()

    def falls_silent(slot: int, **states: PodState) -> tuple[tuple[int, ...], str, float | None]:
        pods = tuple(
            pod_seen(silent(n)._replace(uid=job.state.slots[n].uid, state=state))
            for n, state in ((int(name[1:]), state) for name, state in states.items())
        )
        news = fact("unreachable.agent", node=f"n{slot}", slot=slot)
        job.report("facts", facts=(news,), pods=pods)
        waiting = job.state.waiting
        assert waiting is not None
        return job.state.unreachable, waiting.what, waiting.since

    first = falls_silent(1, n1=PodState.UNREACHABLE)
    began = first[2]
    assert first == ((1,), "an answer from n1", began)
    second = falls_silent(2, n2=PodState.UNREACHABLE)
    assert second == ((1, 2), "an answer from n1, n2", began)
    third = falls_silent(3, n3=PodState.UNREACHABLE, n1=PodState.RUNNING)
    assert third == ((2, 3), "an answer from n2, n3", began)
    job.report("back")
    assert job.state.waiting is None
