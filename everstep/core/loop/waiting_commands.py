"""Commands that wait for their turn. Those that repeat or undo each other are folded, the rest is bounded.

A flood of commands, from a script gone wild or collected while no worker lived, costs a job one turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from everstep.core.errors import CommandRejected
from everstep.core.levels import Level
from everstep.core.state import Command

Commands = tuple[Command, ...]
WAITING_MOST = 100
"""Commands that may wait at once. `stop` and a cancel always find room."""
RESTART_LEVELS = (Level.IN_PLACE, Level.POD, Level.JOB)
"""From the gentlest to the hardest."""


def queued(waiting: Commands, command: Command) -> Commands:
    """The waiting commands with one more; the same tuple if it changes nothing."""
    fold = FOLDS.get(command.name, _once)
    return fold(waiting, command)


def check_room(waiting: Commands, command: Command) -> None:
    """Raise `CommandRejected` if the command would make the queue longer than it may be."""
    if len(waiting) >= WAITING_MOST and len(queued(waiting, command)) > WAITING_MOST:
        raise CommandRejected(
            f"{WAITING_MOST} commands wait already; send {command.name} again once they are carried out"
        )


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
            if args == earlier.args:
                return waiting
            return (*waiting[:place], replace(earlier, args=args), *waiting[place + 1 :])
    return (*waiting, command)


def _level(command: Command) -> Level:
    return Level(command.args.get("level") or Level.IN_PLACE)


OPPOSITE: Mapping[str, str] = {"pause": "resume", "resume": "pause"}

FOLDS: Mapping[str, Callable[[Commands, Command], Commands]] = {
    "pause": _undo,
    "resume": _undo,
    "restart": _one_restart,
    "stop": _first,
    "cancel": _first,
    "adopt": _first,
}
"""Of any other name, a command that is equal to a waiting one is left out."""
