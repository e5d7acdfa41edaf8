"""The shapes of `wire` as data: the fields of each, a run as a value, a state in another clock's time."""

from __future__ import annotations

from collections.abc import Callable
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


def in_time_of(name: str, value: Any, lead_s: float) -> Any:
    """This shape's value by a clock that `lead_s` is ahead of: every `Time` in it is translated."""
    translated = value.copy()
    for field, translate in _translations(name):
        if translated.get(field) is not None:
            translated[field] = translate(translated[field], lead_s)
    return translated


Translate = Callable[[Any, float], Any]


@cache
def _translations(name: str) -> list[tuple[str, Translate]]:
    """The fields of this shape that have times; none of what is no shape."""
    rows = ((field, _translation(kind)) for field, kind in _kinds(name).items())
    return [(field, translate) for field, translate in rows if translate is not None]


def _kinds(name: str) -> dict[str, str]:
    if name == "RunSeen":
        return {**fields(wire.RunProgress), **wire.RUN_PARTS}
    shape = getattr(wire, name, None)
    return fields(shape) if isinstance(shape, type) else {}


def _translation(kind: str) -> Translate | None:
    """How a value of this type is translated; None if it has no times."""
    if kind.endswith(" | None"):
        return _translation(kind[: -len(" | None")])
    if kind.startswith("list["):
        of_item = _translation(kind[len("list[") : -1])
        return of_item and (lambda items, lead_s: [of_item(item, lead_s) for item in items])
    if kind == "Time":
        return lambda at, lead_s: at - lead_s
    if kind == "TimeSpan":
        return lambda span, lead_s: (span[0] - lead_s, span[1] - lead_s)
    if _translations(kind):
        return lambda value, lead_s: in_time_of(kind, value, lead_s)
    return None
