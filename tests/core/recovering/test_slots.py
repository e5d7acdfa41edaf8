"""How sets of slots are written: short where most are alike, and always back as they were."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from everstep.converter import DATA_CONVERTER
from everstep.core.slots import BySlot, Slots, format_ranges, grouped, parse_ranges, spread

NUMBERS = st.lists(st.integers(0, 40)).map(tuple)
BY_SLOT = st.dictionaries(st.integers(0, 40), st.sampled_from("abc"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """As they stand in orders."""

    slots: Slots = ()
    nodes: BySlot[str] = field(default_factory=dict)


@given(NUMBERS)
def test_numbers_come_back_as_they_were_in_whatever_order_and_however_often(
    slots: tuple[int, ...],
) -> None:
    assert parse_ranges(format_ranges(slots)) == slots


@given(BY_SLOT)
def test_every_slot_has_its_value_again(by_slot: dict[int, str]) -> None:
    assert spread(grouped(by_slot)) == by_slot
    assert list(spread(grouped(by_slot))) == sorted(by_slot)


@given(BY_SLOT)
def test_a_value_is_written_once(by_slot: dict[int, str]) -> None:
    assert sorted(grouped(by_slot).values()) == sorted(set(by_slot.values()))


def test_a_set_is_written_as_people_write_it() -> None:
    assert format_ranges((*range(5), *range(6, 1_000), 7)) == "0-4,6-999,7"
    assert grouped({0: "a", 1: "a", 2: "b"}) == {"0-1": "a", "2": "b"}
    assert format_ranges(()) == ""


@given(NUMBERS, BY_SLOT)
def test_a_payload_brings_back_what_it_was_made_of(
    slots: tuple[int, ...], by_slot: dict[int, str]
) -> None:
    value = Both(slots=slots, nodes=by_slot)
    converter = DATA_CONVERTER.payload_converter
    assert converter.from_payload(converter.to_payload(value), Both) == value


def test_plain_numbers_are_read_too() -> None:
    plain = '{"slots": [3, 4], "nodes": {"3": "n3"}}'
    assert TypeAdapter(Both).validate_json(plain) == Both(slots=(3, 4), nodes={3: "n3"})


def test_ten_thousand_slots_that_are_alike_take_no_room() -> None:
    value = Both(slots=tuple(range(10_000)), nodes=dict.fromkeys(range(10_000), "n"))
    assert len(DATA_CONVERTER.payload_converter.to_payload(value).data) < 100
