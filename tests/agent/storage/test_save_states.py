"""What the order of writes, closes, signals and ends says of a save."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.agent.storage.save_states import CLOSED, LEFT, OPEN, RENAMED, Look, SaveStates

RANK, CHILD, SHELL = (10, 1), (11, 2), (12, 3)
FILE = "step_5.bin"
Process = tuple[int, int]
Happening = Callable[[SaveStates], object]


def writes(at: float = 0.0, path: str = FILE) -> Happening:
    return lambda states: states.modified(path, at)


def closes(at: float = 0.0, path: str = FILE) -> Happening:
    return lambda states: states.closed(path, at)


def exits(status: int, pid: int = RANK[0]) -> Happening:
    return lambda states: states.exited(pid, status)


def exits_below(status: int) -> Happening:
    return lambda states: states.exited_below(CHILD, status)


def looked_at(*living: tuple[int, int]) -> Happening:
    processes = frozenset(living)
    look = Look(there=processes, living=processes, writers=processes, shells=processes & {SHELL})
    return lambda states: states.looked(look)


def renames(path: str = FILE) -> Happening:
    return lambda states: states.renamed(path)


def time_passes(until: float) -> Happening:
    return lambda states: states.pass_time(until)


TERM: Happening = SaveStates.terminating
END: Happening = SaveStates.end
BOTH_LIVE = looked_at(RANK, CHILD)
BY_SIGNAL, BY_SIGTERM = -9, -15


def after(*happenings: Happening) -> str | None:
    states = SaveStates()
    states.saw([RANK])
    for happening in happenings:
        happening(states)
    return states.of_all().get(FILE)


@pytest.mark.parametrize(
    ("happenings", "state"),
    [
        ((writes(),), OPEN),
        ((writes(), closes()), OPEN),
        ((writes(), closes(), looked_at(RANK)), None),
        ((writes(), closes(), looked_at(RANK), time_passes(3.0)), CLOSED),
        ((writes(), closes(), looked_at(RANK), exits(BY_SIGNAL)), CLOSED),
        ((writes(), closes(), exits(BY_SIGNAL)), LEFT),
        ((writes(), closes(), exits(BY_SIGTERM)), LEFT),
        ((writes(), closes(), exits(0)), CLOSED),
        ((writes(), closes(), looked_at(RANK), exits(143)), CLOSED),
        ((TERM, writes(), closes(), exits(143)), CLOSED),
        ((TERM, writes(), closes(), looked_at(RANK), exits(143)), CLOSED),
        ((writes(), looked_at(), closes(), exits(BY_SIGNAL)), LEFT),
        ((writes(), exits(BY_SIGNAL), closes(), time_passes(3.0)), None),
        ((writes(), SaveStates.killing, closes(), looked_at(RANK), time_passes(3.0)), None),
        ((renames(), exits(BY_SIGNAL)), RENAMED),
        ((renames(), exits(1)), RENAMED),
    ],
)
def test_a_close_counts_once_its_writer_lived_after_it_or_ended_by_itself(
    happenings: Sequence[Happening], state: str | None
) -> None:
    assert after(*happenings) == state


@pytest.mark.parametrize(
    "happenings",
    [
        (writes(), TERM, closes(), exits(143)),
        (writes(), TERM, closes(), looked_at(RANK), exits(143)),
        (writes(), TERM, closes(), looked_at(RANK), exits(BY_SIGNAL)),
        (writes(), closes(), looked_at(RANK), exits(1)),
        (writes(), closes(), exits(1)),
        (writes(), closes(), exits(143)),
    ],
)
def test_a_close_that_an_exception_may_have_made_says_nothing(
    happenings: Sequence[Happening],
) -> None:
    assert after(*happenings) is None


@pytest.mark.parametrize(
    ("status", "state"),
    [(BY_SIGTERM, CLOSED), (BY_SIGNAL, LEFT), (3, None)],
    ids=["SIGTERM", "SIGKILL", "exit code 3"],
)
def test_a_shell_that_sigterm_ends_before_its_command_cuts_off_nothing(
    status: int, state: str | None
) -> None:
    both, rank = looked_at(RANK, SHELL), looked_at(RANK)
    assert after(both, writes(), closes(), exits(status, SHELL[0]), exits(0)) == state
    assert after(both, rank, writes(), closes(), exits(status, SHELL[0]), exits(0)) == state


def test_a_shell_that_went_on_as_the_trainer_cuts_off_what_it_has_open() -> None:
    """`exec python train.py`: the process is the same one."""
    trainer = frozenset({SHELL})
    as_trainer = Look(there=trainer, living=trainer, writers=trainer, shells=frozenset())
    happenings = (looked_at(SHELL), lambda states: states.looked(as_trainer), writes(), closes())
    assert after(*happenings, exits(BY_SIGNAL, SHELL[0])) == LEFT


@pytest.mark.parametrize("status", [1, 7])
def test_a_stalled_save_whose_writer_ends_by_an_exit_is_not_whole(status: int) -> None:
    """As where another thread gives up a hang, by `os._exit`."""
    assert after(writes(), closes(at=6.0), exits(status)) == LEFT


def test_an_exception_long_after_the_close_says_nothing_against_it() -> None:
    assert after(writes(), closes(), looked_at(RANK), time_passes(3.0), exits(1)) == CLOSED


@pytest.mark.parametrize(
    ("happenings", "state"),
    [
        ((BOTH_LIVE, TERM, writes(), closes(), exits(143)), OPEN),
        ((BOTH_LIVE, TERM, writes(), closes(), exits(143), END), None),
        ((BOTH_LIVE, TERM, writes(), closes(at=6.0), exits(143), END), LEFT),
        ((BOTH_LIVE, writes(), closes(at=6.0), looked_at(RANK), time_passes(9.0)), None),
        ((BOTH_LIVE, writes(), closes(), exits(BY_SIGNAL, CHILD[0])), LEFT),
        ((BOTH_LIVE, writes(), closes(), BOTH_LIVE, time_passes(3.0)), CLOSED),
    ],
)
def test_the_end_of_a_child_that_was_not_reported_leaves_its_close_unknown(
    happenings: Sequence[Happening], state: str | None
) -> None:
    assert after(*happenings) == state


@pytest.mark.parametrize(
    ("happenings", "state"),
    [
        ((TERM, writes(), closes(), exits_below(143)), OPEN),
        ((TERM, writes(), closes(), exits_below(143), exits(0)), CLOSED),
        ((TERM, writes(), closes(), exits(BY_SIGTERM, SHELL[0]), exits_below(0), exits(0)), CLOSED),
        ((writes(), closes(), exits_below(BY_SIGNAL), exits(0)), LEFT),
        ((writes(), closes(), exits_below(1), exits(0)), None),
        ((writes(), closes(), exits_below(143), exits(0)), None),
        ((writes(), TERM, closes(), exits_below(143), exits(0)), None),
    ],
)
def test_the_end_of_a_child_that_was_reported_counts_as_that_of_a_rank(
    happenings: Sequence[Happening], state: str | None
) -> None:
    assert after(BOTH_LIVE, *happenings) == state


IN_PIECES = (writes(), closes(0.1), looked_at(RANK), writes(0.5), closes(0.6), looked_at(RANK))


@pytest.mark.parametrize(
    ("happenings", "state"),
    [
        ((exits(BY_SIGNAL),), None),
        ((exits(BY_SIGNAL), END), None),
        ((exits(0),), CLOSED),
        ((TERM, exits(143)), CLOSED),
        ((time_passes(3.0), exits(BY_SIGNAL)), CLOSED),
    ],
)
def test_a_file_written_in_pieces_may_lack_one_if_its_writer_is_killed_soon_after(
    happenings: Sequence[Happening], state: str | None
) -> None:
    assert after(*IN_PIECES, *happenings) == state


def test_a_piece_that_the_end_of_its_writer_closed_is_left() -> None:
    assert after(*IN_PIECES, writes(0.8), closes(0.9), exits(BY_SIGNAL)) == LEFT


@pytest.mark.parametrize("status", [1, 143, BY_SIGNAL])
def test_a_child_that_cannot_have_closed_a_file_says_nothing_of_it(status: int) -> None:
    """As a tool that a script calls after each save, and that has found nothing."""
    happenings = (writes(), closes(), BOTH_LIVE, exits_below(status), time_passes(3.0))
    assert after(BOTH_LIVE, *happenings) == CLOSED


@pytest.mark.parametrize("first", [renames(), closes()], ids=["renamed", "closed"])
def test_a_file_that_is_written_again_is_open_again(first: Happening) -> None:
    whole = (first, looked_at(RANK), time_passes(3.0))
    assert after(*whole) in (RENAMED, CLOSED)
    assert after(*whole, writes(at=9.0)) == OPEN
    assert after(*whole, writes(at=9.0), renames()) == RENAMED


def test_what_is_open_once_all_have_ended_is_open_in_another_pod() -> None:
    assert after(writes(), exits(BY_SIGNAL), END) is None


def test_a_folder_is_open_as_long_as_a_file_in_it_is_and_whole_if_it_was_renamed() -> None:
    states = SaveStates()
    states.saw([RANK])
    for name in ("a", "b"):
        states.modified(f"step-5/{name}", 0.0)
        states.closed(f"step-5/{name}", 0.0)
    assert states.of_all() == {"step-5": OPEN}
    looked_at(RANK)(states)
    states.pass_time(3.0)
    assert states.of_all() == {}, "more files may have been to come"
    states.renamed("step-5")
    assert states.of_all() == {"step-5": RENAMED}


def test_lost_events_leave_everything_unknown() -> None:
    assert after(renames(), SaveStates.lost) is None
    assert after(writes(), SaveStates.lost) is None


def test_what_was_removed_has_no_state() -> None:
    assert after(renames(), lambda states: states.removed(FILE)) is None


ORPHAN = (13, 4)


class Pod:
    """A rank, a child of it, a shell above, and one file of theirs: what happens, and what is reported.

    `ORPHAN` is a second child, which no look shows. It dies with the rank or after it.
    """

    def __init__(self) -> None:
        self.states = SaveStates()
        self.living = {RANK, CHILD, SHELL, ORPHAN}
        self.holders: set[Process] = set()
        self.is_cut_off = False  # the end of a process closed what is there now
        self.now = 0.0
        self.states.looked(self._look())

    def act(self, action: str, process: Process) -> None:
        self.now += 0.3
        if action == "passes":
            self.now += 3.0
            self.states.pass_time(self.now)
        elif action == "looks":
            self.states.looked(self._look())
        elif process in self.living:
            self._act_of(process, action)

    def _act_of(self, process: Process, action: str) -> None:
        if action == "inherits" and self.holders:
            self.holders.add(process)
        elif action == "closes":
            self._leave(process, by_its_end=False)
        elif action == "opens" and process != ORPHAN:
            self.holders, self.is_cut_off = {*self.holders, process}, False
            self.states.modified(FILE, self.now)
        elif action.startswith("killed") and not (process == ORPHAN and RANK in self.living):
            self._kill(process, action)

    def _kill(self, process: Process, action: str) -> None:
        self.living.remove(process)
        if action == "killed before a look":  # which comes before its close is read
            self.states.looked(self._look())
        self._leave(process, by_its_end=True)
        if process in (RANK, SHELL):
            self.states.exited(process[0], BY_SIGNAL)
        elif action != "killed, and its end not shown":  # as by Linux before 6.15
            self.states.exited_below(process, BY_SIGNAL)

    def _leave(self, process: Process, *, by_its_end: bool) -> None:
        if self.holders == {process}:
            self.is_cut_off = by_its_end
            self.states.closed(FILE, self.now)
        self.holders.discard(process)

    def _look(self) -> Look:
        there = frozenset(self.living - {ORPHAN})
        return Look(there=there, living=there, writers=there, shells=there & {SHELL})

    @property
    def is_wrong(self) -> bool:
        is_whole = not (self.is_cut_off or self.holders)
        return self.states.of_all().get(FILE) == CLOSED and not is_whole


KILLS = ("killed", "killed before a look", "killed, and its end not shown")
ACTIONS = st.sampled_from(["opens", "inherits", "closes", *KILLS, "looks", "passes"])


@settings(max_examples=1_000)
@given(st.lists(st.tuples(ACTIONS, st.sampled_from([RANK, CHILD, SHELL, ORPHAN])), max_size=12))
def test_what_the_end_of_a_process_closed_is_never_whole(
    actions: list[tuple[str, Process]],
) -> None:
    pod = Pod()
    for action, process in actions:
        pod.act(action, process)
        assert not pod.is_wrong
    pod.states.end()
    assert not pod.is_wrong
