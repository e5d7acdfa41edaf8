"""Commands that wait for their turn. Those that repeat or undo each other are folded, the rest is bounded.

A flood of commands, from a script gone wild or collected while no worker lived, costs a job one turn. Of each
command of an operator at most one waits, so that it always finds room; only reported faults are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from everstep.core.bounds import cut, json_bytes
from everstep.core.errors import CommandRejected
from everstep.core.facts import MESSAGE_MOST
from everstep.core.levels import Level
from everstep.core.state import Command

Commands = tuple[Command, ...]
REPORTS_MOST = 100
"""Reported faults that may wait at once, as in a pause."""
REPORTS_BYTES_MOST = 128_000
"""Their size as JSON: a run hands them to the next one, and to each decision that answers them."""
SIGHTINGS_MOST = 10
"""Reports of one fault that wait as they are, for the rules that count it. Further ones are only counted."""
TIMES = "times"
"""Argument of a report that stands for so many."""
JOINS = "joins"
"""Argument of a restart that the one under way does as well."""
RESTART_LEVELS = (Level.IN_PLACE, Level.POD, Level.JOB)
"""From the gentlest to the hardest."""


def queued(waiting: Commands, command: Command) -> Commands:
    """The waiting commands with one more; the same tuple if it changes nothing."""
    fold = FOLDS.get(command.name, _once)
    return fold(waiting, command)


def check_room(waiting: Commands, command: Command) -> None:
    """Raise `CommandRejected` if the command is a reported fault and too many of these would wait."""
    if command.name != "report_fault":
        return
    reports = _reports(queued(waiting, command))
    if len(reports) > REPORTS_MOST or _bytes_of(reports) > REPORTS_BYTES_MOST:
        raise CommandRejected(
            f"{len(_reports(waiting))} reported faults wait for an answer already, which a paused job "
            "gives once it is resumed; send report_fault again after that"
        )


def _reports(waiting: Commands) -> Commands:
    return tuple(command for command in waiting if command.name == "report_fault")


def _bytes_of(reports: Commands) -> int:
    return json_bytes([dict(report.args) for report in reports])


def _once(waiting: Commands, command: Command) -> Commands:
    return waiting if command in waiting else (*waiting, command)


def _first(waiting: Commands, command: Command) -> Commands:
    """The first of its name counts."""
    return waiting if any(c.name == command.name for c in waiting) else (*waiting, command)


def _undo(waiting: Commands, command: Command) -> Commands:
    """A pause and a resume that wait together come to nothing."""
    for place in reversed(range(len(waiting))):
        if waiting[place].name == OPPOSITE[command.name]:
            return (*waiting[:place], *waiting[place + 1 :])
        if waiting[place].name == command.name:
            return waiting
    return (*waiting, command)


def _one_restart(waiting: Commands, command: Command) -> Commands:
    """One restart answers all that wait: the hardest level, the newest reason."""
    for place, earlier in enumerate(waiting):
        if earlier.name == command.name:
            level = max((_level(earlier), _level(command)), key=RESTART_LEVELS.index)
            newest = {key: value for key, value in command.args.items() if key != "id"}
            args = {**earlier.args, **newest, "level": str(level)}
            if not (earlier.args.get(JOINS) and command.args.get(JOINS)):
                args.pop(JOINS, None)
            if args == earlier.args:
                return waiting
            return (*waiting[:place], replace(earlier, args=args), *waiting[place + 1 :])
    return (*waiting, command)


def _level(command: Command) -> Level:
    return Level(command.args.get("level") or Level.IN_PLACE)


def _counted(waiting: Commands, report: Command) -> Commands:
    """Count a report of a fault that has enough reports; the newest of these stands for the rest."""
    reports = _reports(waiting)
    same = [earlier for earlier in reports if _fault(earlier) == _fault(report)]
    if any(_sighting(earlier) == _sighting(report) for earlier in same):
        return waiting
    args = {**report.args}
    if message := args.get("message"):
        args["message"] = cut(message, MESSAGE_MOST)
    if not same or (len(same) < SIGHTINGS_MOST and len(reports) < REPORTS_MOST):
        return (*waiting, replace(report, args=args))
    newest = same[-1]
    counted = replace(report, args={**args, TIMES: newest.args.get(TIMES, 1) + 1})
    return tuple(counted if earlier is newest else earlier for earlier in waiting)


def _fault(report: Command) -> tuple[object, ...]:
    """What is reported: its kind, place and code."""
    return tuple(report.args.get(key) for key in ("kind", "node", "device", "code"))


def _sighting(report: Command) -> tuple[object, ...]:
    """What makes two reports of a fault two. Without both they are of the same time, that of the answer."""
    return report.args.get("id"), report.args.get("at")


OPPOSITE: Mapping[str, str] = {"pause": "resume", "resume": "pause"}

FOLDS: Mapping[str, Callable[[Commands, Command], Commands]] = {
    "pause": _undo,
    "resume": _undo,
    "restart": _one_restart,
    "stop": _first,
    "cancel": _first,
    "adopt": _first,
    "report_fault": _counted,
}
"""Of any other name, a command that is equal to a waiting one is left out."""
