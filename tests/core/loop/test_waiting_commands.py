"""Commands that wait: what repeats or undoes something is folded, and there is an end to the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.errors import CommandRejected
from everstep.core.loop import commands, operators
from everstep.core.loop.waiting_commands import WAITING_MOST, queued
from everstep.core.state import Command, JobState, Mode
from tests.support.builders import running

Row = tuple[str, dict[str, object]]


def job_in(mode: Mode) -> JobState:
    return replace(running().state, mode=mode)


def waiting(rows: Iterable[Row]) -> list[Row]:
    """What is left of these commands, each accepted in this order."""
    waiting: tuple[Command, ...] = ()
    for name, args in rows:
        waiting = queued(waiting, Command(name=name, args=args))
    return [(command.name, dict(command.args)) for command in waiting]


PAUSE: Row = ("pause", {"reason": "lunch"})
RESUME: Row = ("resume", {})
REPORT: Row = ("report_fault", {"kind": "node.down", "node": "n1"})


@pytest.mark.parametrize(
    ("rows", "left"),
    [
        ([PAUSE, RESUME], []),
        ([PAUSE, RESUME, PAUSE], [PAUSE]),
        ([RESUME, PAUSE], []),  # of a paused job, which stays so
        ([PAUSE, REPORT, RESUME], [REPORT]),
        ([PAUSE, RESUME] * 1500 + [PAUSE], [PAUSE]),
        ([REPORT, REPORT], [REPORT]),
        ([("stop", {"grace_s": 3}), ("stop", {"grace_s": 60})], [("stop", {"grace_s": 3})]),
        ([("stop", {}), ("cancel", {})], [("stop", {}), ("cancel", {})]),
    ],
)
def test_what_repeats_or_undoes_something_is_folded(rows: list[Row], left: list[Row]) -> None:
    assert waiting(rows) == left


def test_restarts_become_one_of_the_hardest_level_with_the_newest_reason() -> None:
    rows: list[Row] = [
        ("restart", {"reason": "first", "id": "a"}),
        ("restart", {"level": "job", "id": "b"}),
        ("restart", {"level": "pod", "reason": "last", "id": "c"}),
    ]
    one = ("restart", {"level": "job", "reason": "last", "id": "a"})
    assert waiting(rows) == [one]
    assert waiting(rows * 300) == [one]


def test_a_full_queue_refuses_all_but_stop() -> None:
    state = job_in(Mode.RECOVERING)
    for number in range(WAITING_MOST):
        state = commanded(state, "report_fault", {**REPORT[1], "code": f"{number}"})
    with pytest.raises(CommandRejected, match="100 commands wait already"):
        commands.accept(state, "restart", {})
    with pytest.raises(CommandRejected, match="send report_fault again"):
        commands.accept(state, "report_fault", REPORT[1])
    assert len(commanded(state, "stop", {}).commands) == WAITING_MOST + 1


def commanded(state: JobState, name: str, args: dict[str, object]) -> JobState:
    return operators.commanded(state, commands.accept(state, name, args))


NAMES = ("pause", "resume", "restart", "stop", "report_fault", "adopt")


@given(st.lists(st.sampled_from(NAMES), max_size=300), st.sampled_from(list(Mode)))
def test_no_flood_grows_the_queue_beyond_its_bound_nor_changes_whether_the_job_pauses(
    names: list[str], mode: Mode
) -> None:
    state, is_paused = job_in(mode), mode in (Mode.PAUSED, Mode.PAUSING)
    for number, name in enumerate(names):
        args = {**REPORT[1], "code": f"{number}"} if name == "report_fault" else {}
        try:
            state = commanded(state, name, args)
        except CommandRejected:
            continue
        is_paused = {"pause": True, "resume": False}.get(name, is_paused)
    assert len(state.commands) <= WAITING_MOST + 1  # and a stop
    left = [c.name for c in state.commands if c.name in ("pause", "resume")]
    assert len(left) <= 1
    ends = left[0] == "pause" if left else mode in (Mode.PAUSED, Mode.PAUSING)
    assert ends == is_paused
