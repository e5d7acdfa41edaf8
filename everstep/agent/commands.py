"""Validates commands: each has every field of its shape in `wire`, of the right type."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from everstep.agent.observing import losses, npu_hang, steps
from everstep.agent.storage import checkpoint_names
from everstep.protocol import bounds, wire
from everstep.protocol.shapes import fields

DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(("phase", "run", "cluster"), ""),
    **dict.fromkeys(("format", "checkpoints_format"), "auto"),
    "accelerator": "none",
    "stop_siblings": True,
    "prewarm_auto": False,
    "evidence": False,
    "fence_s": wire.FENCE_S,
    "npu_look_s": npu_hang.MINUTE_S,
    "pace_s": wire.PACE_S,
    "grace_s": 0.0,
    "hold_s": 0.0,
    "pods": 0,
    "leads": False,
}
"""What counts where a field is left out. Of lists, dictionaries and what may be None, that is nothing."""


SAVE_SIGNALS = ("SIGUSR1", "SIGUSR2")


class BadCommand(ValueError):
    """The command is malformed; the message names the field."""


def run_command(body: Mapping[str, Any]) -> wire.RunCommand:
    """Raises BadCommand."""
    order = wire.RunOrder(**read(body, wire.RunOrder))
    command: wire.RunCommand = read({**body, "order": order}, wire.RunCommand)
    _need(order.command and command["ranks"], "command, ranks: at least one of each is needed")
    for env in (command["env"], *(plan["env"] for plan in command["ranks"])):
        _need(all(name and not {"=", "\0"} & {*name} for name in env), "env: names are needed")
    _need(order.still_s is None or order.still_s > 0, "still_s: a number above 0 is needed")
    try:
        steps.pattern(order.log_pattern)
        losses.LossSearch(order.loss_pattern)
        checkpoint_names.check(order.checkpoints_pattern)
    except (steps.BadPattern, losses.BadPattern, checkpoint_names.BadPattern) as error:
        raise BadCommand(str(error)) from None
    return command


def save_command(body: Mapping[str, Any]) -> wire.SaveCommand:
    """Raises BadCommand."""
    command: wire.SaveCommand = read(body, wire.SaveCommand)
    _need(command["signal"] in SAVE_SIGNALS, f"signal: one of {', '.join(SAVE_SIGNALS)} is needed")
    return command


def copy_part(text: bytes) -> wire.CopyPart:
    """Raises BadCommand, or ValueError for what is no JSON."""
    body = json.loads(text)
    _need(isinstance(body, dict), "a part of a copy is an object")
    part: wire.CopyPart = read(body, wire.CopyPart)
    sizes = (part["index_bytes"], part["content_bytes"])
    _need(0 <= sizes[0] <= sizes[1], "index_bytes, content_bytes: the index is part of the content")
    _need(0 <= part["offset"] <= sizes[1], "offset: it is within the content")
    _need(0 <= part["step"] <= bounds.STEP_MOST, "step: it is not negative")
    return part


def pin_report(text: bytes) -> wire.PinReport:
    """Raises BadCommand, or ValueError for what is no JSON."""
    body = json.loads(text)
    _need(isinstance(body, dict), "a report is an object")
    report: wire.PinReport = read(body, wire.PinReport)
    steps = (report["step"], report["next_from"], report["has"], report["newest"])
    numbers = [report["number"], report["done"], *(step for step in steps if step is not None)]
    _need(all(0 <= one <= bounds.STEP_MOST for one in numbers), "numbers are not negative")
    return report


def inherited(
    environ: Mapping[str, str], folder: Path, command: wire.RunCommand
) -> wire.RunCommand:
    """The command over an environment and a folder: what it names itself comes first."""
    completed = command.copy()
    completed["env"] = {**environ, **command["env"]}
    order = command["order"]
    completed["order"] = order._replace(workdir=str(folder / order.workdir))
    completed["prefetch"] = [
        {**plan, "env": {**environ, **plan["env"]}} for plan in command["prefetch"]
    ]
    return completed


def check_command(body: Mapping[str, Any]) -> wire.CheckCommand:
    """Unknown thresholds are those of another version and left out. Raises BadCommand."""
    command: wire.CheckCommand = read({"devices": 0, **body}, wire.CheckCommand)
    usual, overrides = wire.THRESHOLDS._asdict(), command["thresholds"]
    merged = read({**usual, **overrides}, wire.Thresholds)
    return {
        **command,
        "thresholds": {name: merged[name] for name in overrides.keys() & usual.keys()},
    }


def read(body: Mapping[str, Any], shape: type) -> Any:
    """The command, complete and with everything in it of the right kind. Raises BadCommand."""
    command = {}
    for name, kind in fields(shape).items():
        empty: Any = [] if kind.startswith("list[") else {} if kind.startswith("dict[") else None
        command[name] = body.get(name, DEFAULTS.get(name, empty))
        _need(_is(command[name], kind), f"{name}: a {kind} is needed")
    return command


def number(query: Mapping[str, str], name: str, default: float) -> float:
    """A number among the query parameters. Raises BadCommand."""
    try:
        value = float(query.get(name, default))
    except ValueError:
        value = math.nan
    _need(_is_number(value), f"{name}: a number is needed")
    return value


def _need(holds: object, otherwise: str) -> None:
    if not holds:
        raise BadCommand(otherwise)


def _is(value: Any, kind: str) -> bool:
    if kind.endswith(" | None"):
        return value is None or _is(value, kind[: -len(" | None")])
    if kind.startswith("list["):
        return isinstance(value, list) and all(_is(one, kind[5:-1]) for one in value)
    if kind.startswith("dict[str, "):
        return isinstance(value, dict) and all(_is(one, kind[10:-1]) for one in value.values())
    return _KINDS[kind](value)


def _has_fields(shape: type) -> Callable[[Any], bool]:
    kinds = fields(shape).items()
    return lambda value: isinstance(value, dict) and all(_is(value.get(n), k) for n, k in kinds)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= bounds.DOCUMENT_NUMBER


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "Any": lambda _: True,
    "CheckpointsQuestion": lambda value: isinstance(value, dict),  # `read` on its own
    "RankPlan": _has_fields(wire.RankPlan),
    "Neighbour": _has_fields(wire.Neighbour),
    "Fetch": _has_fields(wire.Fetch),
    "PrefetchPlan": _has_fields(wire.PrefetchPlan),
    "RunOrder": lambda value: isinstance(value, wire.RunOrder),  # `read` on its own
    "bool": lambda value: isinstance(value, bool),
    "float": _is_number,
    "int": lambda value: type(value) is int and _is_number(value),
    "str": _is_text,
    "TimeSpan": lambda value: isinstance(value, list) and [*map(_is_number, value)] == [True, True],
    "Folder": lambda value: _is_text(value) and value != "",
}
