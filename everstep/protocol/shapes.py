"""The shapes of `wire` as data: the fields of each, a run as a value, a state in another clock's time."""

from __future__ import annotations

from functools import cache
from typing import Any

from everstep.protocol import wire


def fields(shape: type) -> dict[str, str]:
    """The type of each field, as it is written down."""
    kinds: dict[str, Any] = {}
    for base in reversed(shape.__mro__):
        kinds.update(getattr(base, "__annotations__", {}))
    return {name: getattr(kind, "__forward_arg__", kind) for name, kind in kinds.items()}


def run_json(command: wire.RunCommand) -> dict[str, Any]:
    """The JSON of a run command: the fields of its order stand beside the others."""
    fields_of_slot = {name: value for name, value in command.items() if name != "order"}
    return {**command["order"]._asdict(), **fields_of_slot}


def progress_of(run: wire.RunSeen) -> wire.RunProgress:
    """The progress in the JSON of a run. What an agent of an earlier version leaves out has its default."""
    return wire.RunProgress(**{name: run[name] for name in wire.RunProgress._fields if name in run})


def in_time_of(kind: str, value: Any, lead_s: float) -> Any:
    """A value of this type by a clock that `lead_s` is ahead of: every `Time` in it is translated."""
    kind = kind.removesuffix(" | None")
    if value is None:
        return None
    if kind == "Time":
        return value - lead_s
    if kind == "TimeSpan":
        return value[0] - lead_s, value[1] - lead_s
    if kind.startswith("list["):
        return [in_time_of(kind[len("list[") : -1], item, lead_s) for item in value]
    kinds = _shapes().get(kind, {})
    translated = {n: in_time_of(kinds[n], value[n], lead_s) for n in kinds if n in value}
    return {**value, **translated} if kinds else value


@cache
def _shapes() -> dict[str, dict[str, str]]:
    """The fields of every shape of `wire` by its name."""
    shapes = {name: fields(shape) for name, shape in vars(wire).items() if isinstance(shape, type)}
    return {**shapes, "RunSeen": {**shapes["RunProgress"], **wire.RUN_PARTS}}
