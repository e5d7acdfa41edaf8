"""What the makers' tools print of the use of their devices, read as index -> percent.

A device that is not listed, or has no number there, is left out. Unreadable output gives an empty table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_INDEX = r"[0-9]{1,4}"
_NUMBER = r"[0-9]{1,3}(?:\.[0-9]+)?"


def nvidia(text: str) -> dict[int, float]:
    """Parse `nvidia-smi --query-gpu=index,utilization.gpu --format=csv,noheader,nounits`."""
    matches = re.finditer(rf"(?m)^\s*({_INDEX})\s*,\s*({_NUMBER})\s*%?\s*$", text)
    return {int(row[1]): float(row[2]) for row in matches}


def npu_usages(text: str, index: int) -> dict[int, float]:
    """Parse `npu-smi info -t usages -i INDEX`. Several chips: their sum, which changes with any of them."""
    pattern = r"(?im)^\s*(?:ai ?core|npu)\s+(?:usage rate|utilization)\s*\(%\)\s*:\s*(\S+)\s*$"
    values = [float(value) for value in re.findall(pattern, text) if re.fullmatch(_NUMBER, value)]
    return {index: sum(values)} if values else {}


class _Chip(NamedTuple):
    """A chip in the table: its card, its number on the machine if the table has it, its utilisation."""

    card: int
    number: int | None
    used: float | None


def npu_table(text: str) -> dict[int, float]:
    """Parse `npu-smi info`: two lines per chip; the second has its number and its utilisation."""
    chips = list(_chips(text.splitlines()))
    numbers = [chip.card if chip.number is None else chip.number for chip in chips]
    if len(set(numbers)) < len(chips):  # each card numbers its own chips
        numbers = list(range(len(chips)))
    return {numbers[at]: chip.used for at, chip in enumerate(chips) if chip.used is not None}


def _chips(lines: Iterable[str]) -> Iterator[_Chip]:
    card: int | None = None
    for line in lines:
        if "Process id" in line:
            return  # the second table
        cells = [cell.split() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 3 or not all(cells) or not re.fullmatch(_INDEX, cells[0][0]):
            continue
        (first, *more), (second, *_), (used, *_) = cells
        if ":" not in second and second != "NA":  # no bus ID: the line with the health of a card
            card = int(first)
        elif card is not None:
            number = int(more[0]) if more and re.fullmatch(_INDEX, more[0]) else None
            yield _Chip(card, number, float(used) if re.fullmatch(_NUMBER, used) else None)
            card = None
