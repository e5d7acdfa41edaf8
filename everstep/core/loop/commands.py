"""Commands of operators to a job: checked before they are accepted, each refusal a sentence.

Each check raises `CommandRejected`. `parse_arguments` needs the command alone: keys and types (`KEYS`),
bounds (`TEXTS`, `NUMBERS`), then what the values mean (`ARGUMENT_CHECKS`). `accept` also looks at the job
(`JOB_CHECKS`). Below are the facts that commands become: a requested restart is named and decided like any
other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from everstep.core.bounds import (
    DOCUMENT_MOST,
    NAME_MOST,
    QUOTED_MOST,
    TEXT_MOST,
    checked_seconds,
    cut,
    dated,
    encodable,
    has_infinite,
    json_bytes,
    quoted,
    seconds,
    short_id,
)
from everstep.core.errors import CommandRejected
from everstep.core.facts import (
    MESSAGE_MOST,
    NUMBERS_CHECKED,
    REPORTED,
    RESTART_REQUESTED,
    WORLD_MOVED,
    Fact,
)
from everstep.core.levels import Level
from everstep.core.loop import waiting_commands
from everstep.core.loop.waiting_commands import RESTART_LEVELS, TIMES
from everstep.core.recovering.avoiding import avoided_nodes
from everstep.core.state import Command, JobState, Mode

SAME_REPORT_S = 60.0
"""Two reports of one thing without an id within this time are one."""
CLOCKS_DIFFER_S = 3_600.0
"""A report may be so far ahead of now; it counts as of the time that the job has seen last."""
REPORTED_WITHIN_S = 7 * 86_400.0
"""Older reports are refused: no rule counts faults over a longer time."""

JobCheck = Callable[[JobState, Mapping[str, Any], float], None]
ArgumentCheck = Callable[[Mapping[str, Any]], None]
ArgumentType = type | tuple[type, ...]
_NUMBER: tuple[type, ...] = (int, float)


def accept(state: JobState, name: str, raw: object, *, now: float = 0.0) -> Command:
    """The command, checked; `CommandRejected` with a sentence if it cannot be accepted.

    `now`: the server's time. A job that is paused or waits has that of its cluster from long ago.
    """
    args = parse_arguments(name, raw)
    if state.mode in (Mode.CLOSING, Mode.ENDED) and name not in WHILE_ENDING:
        raise CommandRejected(f"the job is ending ({state.ending}); {name} comes too late")
    if name in JOB_CHECKS:
        JOB_CHECKS[name](state, args, now)
    command = Command(name=name, args=args)
    waiting_commands.check_room(state.commands, command)
    return command


def parse_arguments(name: str, raw: object) -> dict[str, Any]:
    """The arguments of a command without keys that are null, checked as far as that needs no job."""
    if not isinstance(raw, Mapping):
        raise CommandRejected(f"{name} takes one JSON object, not {type(raw).__name__}")
    types: Mapping[str, ArgumentType] = {"id": str, **KEYS[name]}
    for key, value in raw.items():
        if key not in types:
            keys = ", ".join(types)
            raise CommandRejected(f"{name}: unknown key {quoted(key)}; its keys are {keys}")
        if value is not None and (problem := _problem(key, value, types[key])):
            raise CommandRejected(f"{name}: {key} {problem}")
    args = {key: value for key, value in raw.items() if value is not None or key in NULLABLE}
    if name in ARGUMENT_CHECKS:
        ARGUMENT_CHECKS[name](args)
    return args


def _problem(key: str, value: object, kind: ArgumentType) -> str | None:
    """What is wrong with a value: the end of a sentence that begins with its key. None: nothing."""
    if isinstance(value, bool) or not isinstance(value, kind):
        return f"may not be {quoted(value)}"
    if isinstance(value, str):
        return _text_problem(value, TEXTS.get(key, NAME_MOST), is_name=key not in TEXTS)
    if isinstance(value, int | float):
        least, most, otherwise = NUMBERS[key]
        return None if least <= value <= most else f"{otherwise} (not {quoted(value)})"
    if has_infinite(value):
        return "may not hold an infinite number"
    return None if json_bytes(value) <= DOCUMENT_MOST else "is larger than 1 MB; keep data in files"


def _text_problem(text: str, most: int, *, is_name: bool) -> str | None:
    if len(text) > most:
        return f"has more than {most} characters ({len(text)})"
    if is_name and not text.strip():
        return "may not be empty; leave it out instead"
    if is_name and not text.isprintable():
        return f"may not hold control characters (it is {quoted(text)})"
    return None if encodable(text) == text else "holds half of a character (an unpaired surrogate)"


KEYS: Mapping[str, Mapping[str, ArgumentType]] = {
    "pause": {"reason": str},
    "resume": {"reason": str},
    "stop": {"grace_s": _NUMBER, "reason": str},
    "restart": {"level": str, "reason": str},
    "report_fault": {
        "kind": str,
        "node": str,
        "device": int,
        "code": str,
        "at": (*_NUMBER, str),
        "message": str,
    },
    "hot_update": {"patch": dict, "when": str, "by": str},
    "set_budget": {"name": str, "limit": int},
    "adopt": {"reason": str},
    "release": {"node": str},
    "checkpoint": {"within_s": _NUMBER},
}

WHILE_ENDING = frozenset({"adopt"})
"""Commands that an ending job takes: it may wait for books that are gone."""

TEXTS: Mapping[str, int] = {"reason": TEXT_MOST, "message": TEXT_MOST}
"""Most characters of free texts; any other text is a name, of at most `NAME_MOST`."""

GRACE_MOST_S = 86_400
SAVE_WITHIN_S, SAVE_WITHIN_MOST_S = 60.0, 3_600
"""How long a requested checkpoint may take, unless the request says so."""
NUMBERS: Mapping[str, tuple[float, float, str]] = {
    "grace_s": (0, GRACE_MOST_S, "may not be negative, nor more than a day"),
    "device": (0, 1_000_000, "is the index of a device"),
    "at": (-math.inf, math.inf, "is a time"),  # its range: `_check_report_arguments`
    "within_s": (1, SAVE_WITHIN_MOST_S, "is from 1 to 3600 seconds"),
    "limit": (0, 1_000_000, "is a whole number from 0 to 1000000, or null for none"),
}
"""Least, most, and what a refusal says. NaN is in no range."""

NULLABLE = frozenset({"limit"})
"""Keys that may be null: no limit."""


def _check_pause(state: JobState, _raw: Mapping[str, Any], _now: float) -> None:
    if _will_be_paused(state):
        raise CommandRejected("the job is paused already")


def _check_resume(state: JobState, _raw: Mapping[str, Any], _now: float) -> None:
    if not _will_be_paused(state):
        raise CommandRejected("the job is not paused")


def _will_be_paused(state: JobState) -> bool:
    """Whether it is, or will be once the commands that wait are carried out."""
    waiting = [c.name for c in state.commands if c.name in ("pause", "resume")]
    return waiting[-1] == "pause" if waiting else state.mode in (Mode.PAUSING, Mode.PAUSED)


def _check_restart_arguments(raw: Mapping[str, Any]) -> None:
    level = raw.get("level") or Level.IN_PLACE
    if level not in set(RESTART_LEVELS):
        raise CommandRejected(f"restart: level is one of {', '.join(RESTART_LEVELS)}")


def _check_restart(state: JobState, _raw: Mapping[str, Any], _now: float) -> None:
    if state.mode in (Mode.PAUSED, Mode.PAUSING):
        raise CommandRejected("the job is paused; resume it instead")


def _check_report_arguments(raw: Mapping[str, Any]) -> None:
    kind = raw.get("kind")
    if not kind or "." not in kind:
        raise CommandRejected("report_fault: kind is a dotted word, such as node.down")
    try:
        checked_seconds(raw.get("at", 0))
    except ValueError as error:
        raise CommandRejected(f"report_fault: at {error}") from None
    if _lacks_node(raw):
        raise CommandRejected(f"report_fault: {kind} needs a node: the name of where it was seen")


def _lacks_node(raw: Mapping[str, Any]) -> bool:
    is_of_node = str(raw["kind"]).startswith(("node.", "device.")) or "device" in raw
    return is_of_node and "node" not in raw


def _check_report(state: JobState, raw: Mapping[str, Any], now: float) -> None:
    if "at" in raw and state.now:
        _check_time(raw["at"], seen_at=state.now, now=max(state.now, now))
    nodes = sorted({slot.node for slot in state.slots.values() if slot.node})
    if "node" in raw and nodes and raw["node"] not in {*nodes, *state.isolated}:
        names = cut(", ".join(nodes), QUOTED_MOST)
        raise CommandRejected(
            f"report_fault: {quoted(raw['node'])} is no node of this job; its nodes are {names}"
        )


def _check_time(at: float | str, *, seen_at: float, now: float) -> None:
    if seconds(at) > now + CLOCKS_DIFFER_S:
        raise CommandRejected(
            f"report_fault: at {quoted(at)} is in the future; leave it out for now"
        )
    if seconds(at) < seen_at - REPORTED_WITHIN_S:
        days = REPORTED_WITHIN_S / 86_400
        raise CommandRejected(f"report_fault: at {quoted(at)} is more than {days:.0f} days ago")


def _check_hot_update_arguments(raw: Mapping[str, Any]) -> None:
    if not raw.get("patch"):
        raise CommandRejected("hot_update: patch is a fragment of the document's spec")
    if raw.get("when", "next_restart") not in ("now", "next_restart"):
        raise CommandRejected("hot_update: when is now or next_restart")


def _check_budget(state: JobState, raw: Mapping[str, Any], _now: float) -> None:
    names = [budget.name for budget in state.phase.policy.budgets]
    if raw.get("name") not in names:
        all_names = ", ".join(names) or "none"
        raise CommandRejected(
            f"set_budget: no budget {quoted(raw.get('name'))}; this phase has {all_names}"
        )
    if "limit" not in raw:
        raise CommandRejected(f"set_budget: limit {NUMBERS['limit'][-1]}")


def _check_release_arguments(raw: Mapping[str, Any]) -> None:
    if "node" not in raw:
        raise CommandRejected("release: node is the name of a node that the job avoids")


def _check_release(state: JobState, raw: Mapping[str, Any], _now: float) -> None:
    avoided = [each.node for each in avoided_nodes(state)]
    if raw["node"] not in avoided:
        names = cut(", ".join(avoided), QUOTED_MOST) or "none"
        raise CommandRejected(
            f"release: the job does not avoid {quoted(raw['node'])}; the nodes it avoids: {names}"
        )


NOTHING_SAVES: Mapping[Mode, str] = {
    Mode.PAUSED: "the job is paused: no rank runs that could save; resume it first",
    Mode.PAUSING: "the job is being paused: its ranks save as they stop",
    Mode.RECOVERING: "a restart is under way; send it again once the job runs",
    Mode.PENDING: "the job has not started yet",
    Mode.LAUNCHING: "the job has not started yet",
    Mode.READING: "the job is being looked at after a lost restart; send it again in a moment",
    Mode.REPORTING: "the job is about to go on; send it again in a moment",
}
"""Modes in which no checkpoint can be requested, and why."""


def _check_checkpoint(state: JobState, _raw: Mapping[str, Any], _now: float) -> None:
    if state.mode in NOTHING_SAVES:
        newest = "" if state.saved is None else f"; the newest checkpoint is {state.saved.name}"
        raise CommandRejected(f"checkpoint: {NOTHING_SAVES[state.mode]}{newest}")
    if state.phase.save_signal is None:
        raise CommandRejected(
            "checkpoint: the document names no signal on which the script saves; set checkpoints.save_signal"
        )


ARGUMENT_CHECKS: Mapping[str, ArgumentCheck] = {
    "release": _check_release_arguments,
    "restart": _check_restart_arguments,
    "report_fault": _check_report_arguments,
    "hot_update": _check_hot_update_arguments,
}


def _check_change(state: JobState, args: Mapping[str, Any], _now: float) -> None:
    """A change of phases that have ended alone would have no effect."""
    patch = args.get("patch") or {}
    entries = patch.get("phases")
    if set(patch) != {"phases"} or not isinstance(entries, list):
        return
    ended = [result.name for result in state.finished]  # compared with what is not always a text
    phases = [entry.get("name") for entry in entries if isinstance(entry, Mapping)]
    if phases and all(name in ended for name in phases):
        which = ", ".join(map(quoted, phases))
        raise CommandRejected(
            f"hot_update: phase {which} has ended; the change would have no effect"
        )


JOB_CHECKS: Mapping[str, JobCheck] = {
    "release": _check_release,
    "hot_update": _check_change,
    "pause": _check_pause,
    "resume": _check_resume,
    "restart": _check_restart,
    "report_fault": _check_report,
    "set_budget": _check_budget,
    "checkpoint": _check_checkpoint,
}

# -- The facts that commands become ------------------------------------------------------------------


def restart_fact(args: Mapping[str, Any], *, at: float, generation: int) -> Fact:
    level = str(args.get("level") or Level.IN_PLACE)
    return Fact(
        id=f"operator/restart/{args.get('id') or f'{generation}/{at:.3f}'}",
        kind=RESTART_REQUESTED,
        at=at,
        message=str(args.get("reason") or "an operator asked for a restart"),
        details={"level": level},
    )


def adopted_fact(args: Mapping[str, Any], *, at: float, generation: int) -> Fact:
    why = f": {args['reason']}" if args.get("reason") else ""
    return Fact(
        id=f"operator/adopt/{generation}/{at:.3f}",
        kind=RESTART_REQUESTED,
        at=at,
        message=f"an operator had the job adopted by another cluster database{why}",
        details={"level": str(Level.JOB)},
    )


def resume_fact(args: Mapping[str, Any], *, at: float, generation: int) -> Fact:
    return Fact(
        id=f"operator/resume/{generation}/{at:.3f}",
        kind="operator.resume",
        at=at,
        message=str(args.get("reason") or "the pause is over"),
        details={"level": str(Level.IN_PLACE)},
    )


def world_moved_fact(*, at: float, generation: int) -> Fact:
    return Fact(
        id=f"world/moved/{generation}/{at:.3f}",
        kind=WORLD_MOVED,
        at=at,
        message="another run of this job was here and left it stopped",
        details={"level": str(Level.IN_PLACE)},
    )


def numbers_checked_fact(*, at: float, generation: int) -> Fact:
    return Fact(
        id=f"world/{NUMBERS_CHECKED}/{generation}",
        kind=NUMBERS_CHECKED,
        at=at,
        generation=generation,
        message="all ranks ended well after their numbers were checked",
    )


def reported_fact(args: Mapping[str, Any], *, at: float, earlier_ids: frozenset[str]) -> Fact:
    """The fact that an operator or a tool reports. Without an id, the same words within a minute are one."""
    when = at if args.get("at") is None else dated(seconds(args["at"]))
    return Fact(
        id=_report_id(args, when, earlier_ids),
        kind=str(args["kind"]),
        at=min(when, at),
        node=args.get("node"),
        device=args.get("device"),
        code=args.get("code"),
        message=_report_message(args),
        details={TIMES: args[TIMES]} if TIMES in args else {},
    )


def _report_message(args: Mapping[str, Any]) -> str:
    times = f" (reported {args[TIMES]} times)" if TIMES in args else ""
    message = str(args.get("message") or "reported by an operator")
    return f"{cut(message, MESSAGE_MOST - len(times))}{times}"


def _report_id(args: Mapping[str, Any], when: float, earlier_ids: frozenset[str]) -> str:
    if args.get("id"):
        return f"{REPORTED}{short_id(args['id'])}"
    what = "/".join(str(args.get(key)) for key in ("kind", "node", "device", "code"))
    if args.get("at") is not None:
        return f"{REPORTED}{short_id(f'{what}/{when:.3f}')}"
    minute = int(when // SAME_REPORT_S)
    before, now = (f"{REPORTED}{short_id(f'{what}/minute-{m}')}" for m in (minute - 1, minute))
    return before if before in earlier_ids else now
