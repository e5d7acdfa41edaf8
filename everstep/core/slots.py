"""How sets of slots are written where they are kept: `0-4,6-999`, and a value once for all that share it.

In memory they are plain tuples and mappings; only what goes through a history is short. A job has up to
ten thousand slots, and most of what is said of one is said of nearly all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Annotated, Any, TypeVar

V = TypeVar("V")
Schema = dict[str, Any]
"""What pydantic's core is told of a type, as the values it takes: the rules import nothing of it."""
SchemaHandler = Callable[[Any], Schema]


def written(slots: Iterable[int]) -> str:
    """The numbers in their order, as ranges wherever each is one more than the one before it."""
    runs = groupby(enumerate(slots), key=lambda numbered: numbered[1] - numbered[0])
    return ",".join(_run([slot for _, slot in run]) for _, run in runs)


def _run(slots: list[int]) -> str:
    return f"{slots[0]}" if len(slots) == 1 else f"{slots[0]}-{slots[-1]}"


def read(text: str) -> tuple[int, ...]:
    """The numbers that were written so."""
    return tuple(slot for run in text.split(",") if run for slot in _slots(run))


def _slots(run: str) -> Iterator[int]:
    first, _, last = run.partition("-")
    yield from range(int(first), int(last or first) + 1)


def grouped(by_slot: Mapping[int, V]) -> dict[str, V]:
    """Each value once, under all slots that share it."""
    sharing: dict[V, list[int]] = {}
    for slot in sorted(by_slot):
        sharing.setdefault(by_slot[slot], []).append(slot)
    return {written(slots): value for value, slots in sharing.items()}


def spread(by_group: Mapping[str, V]) -> dict[int, V]:
    """Every slot with its own value again, in the order of the slots."""
    one_each = {slot: value for group, value in by_group.items() for slot in read(group)}
    return dict(sorted(one_each.items()))


class _AsRanges:
    """Has pydantic write numbers as ranges, and read both ranges and numbers."""

    def __get_pydantic_core_schema__(self, source: Any, handler: SchemaHandler) -> Schema:
        writes = {"type": "function-plain", "function": written, "return_schema": {"type": "str"}}
        return _read_by(_numbers, handler(source), writes)


class _AsGroups:
    """Has pydantic write a mapping in groups, and read it with groups or numbers as its keys."""

    def __get_pydantic_core_schema__(self, source: Any, handler: SchemaHandler) -> Schema:
        plain = handler(source)
        groups = {**plain, "keys_schema": {"type": "str"}}
        writes = {"type": "function-wrap", "function": _write_groups, "schema": groups}
        return _read_by(_by_slot, plain, writes)


def _read_by(reads: Callable[[Any], Any], then: Schema, writes: Schema) -> Schema:
    before = {"type": "no-info", "function": reads}
    return {
        "type": "function-before",
        "function": before,
        "schema": then,
        "serialization": writes,
    }


def _numbers(given: Any) -> Any:
    return read(given) if isinstance(given, str) else given


def _by_slot(given: Any) -> Any:
    return spread({str(key): value for key, value in given.items()})


def _write_groups(by_slot: Mapping[int, Any], write: Callable[[Any], Any]) -> Any:
    return write(grouped(by_slot))


Slots = Annotated[tuple[int, ...], _AsRanges()]
BySlot = Annotated[Mapping[int, V], _AsGroups()]
