"""A short form of slots in payloads: `0-4,6-999`, and a shared value once for all its slots.

In memory they are plain tuples and mappings. A job has up to ten thousand slots, and most of them share
their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Annotated, Any, TypeVar

V = TypeVar("V")
Schema = dict[str, Any]
"""A schema of pydantic's core as plain values, so that the core does not import pydantic."""
SchemaHandler = Callable[[Any], Schema]


def format_ranges(slots: Iterable[int]) -> str:
    """The numbers in their order, consecutive ones as a range."""
    runs = groupby(enumerate(slots), key=lambda numbered: numbered[1] - numbered[0])
    return ",".join(_run([slot for _, slot in run]) for _, run in runs)


def _run(slots: list[int]) -> str:
    return f"{slots[0]}" if len(slots) == 1 else f"{slots[0]}-{slots[-1]}"


def parse_ranges(text: str) -> tuple[int, ...]:
    """The numbers of such a text."""
    return tuple(slot for run in text.split(",") if run for slot in _slots(run))


def _slots(run: str) -> Iterator[int]:
    first, _, last = run.partition("-")
    yield from range(int(first), int(last or first) + 1)


def grouped(by_slot: Mapping[int, V]) -> dict[str, V]:
    """Each value once, by the ranges of its slots."""
    sharing: dict[V, list[int]] = {}
    for slot in sorted(by_slot):
        sharing.setdefault(by_slot[slot], []).append(slot)
    return {format_ranges(slots): value for value, slots in sharing.items()}


def spread(by_group: Mapping[str, V]) -> dict[int, V]:
    """The value of each slot, in the order of the slots."""
    one_each = {slot: value for group, value in by_group.items() for slot in parse_ranges(group)}
    return dict(sorted(one_each.items()))


class _AsRanges:
    """Makes pydantic write numbers as ranges, and read ranges and numbers."""

    def __get_pydantic_core_schema__(self, source: Any, handler: SchemaHandler) -> Schema:
        writes = {
            "type": "function-plain",
            "function": format_ranges,
            "return_schema": {"type": "str"},
        }
        return _read_by(_numbers, handler(source), writes)


class _AsGroups:
    """Makes pydantic write a mapping in groups, and read it with ranges or numbers as keys."""

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


def _numbers(value: Any) -> Any:
    return parse_ranges(value) if isinstance(value, str) else value


def _by_slot(value: Any) -> Any:
    return spread({str(key): value for key, value in value.items()})


def _write_groups(by_slot: Mapping[int, Any], write: Callable[[Any], Any]) -> Any:
    return write(grouped(by_slot))


Slots = Annotated[tuple[int, ...], _AsRanges()]
BySlot = Annotated[Mapping[int, V], _AsGroups()]
