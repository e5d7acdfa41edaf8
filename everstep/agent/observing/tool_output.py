"""What the makers' tools print of the use and the memory of their devices, each by index.

A device that is not listed, or has no number there, is left out. Unreadable output gives an empty table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_INDEX = r"[0-9]{1,4}"
_NUMBER = r"[0-9]{1,3}(?:\.[0-9]+)?"


_MEGABYTES = r"[0-9]{1,9}"


class Memory(NamedTuple):
    """The memory of a device."""

    used_mb: float
    total_mb: float


def nvidia(text: str) -> dict[int, float]:
    """Parse `nvidia-smi --query-gpu=index,utilization.gpu,... --format=csv,noheader,nounits`: percent."""
    matches = re.finditer(rf"(?m)^\s*({_INDEX})\s*,\s*({_NUMBER})\s*%?\s*(?:,.*)?$", text)
    return {int(row[1]): float(row[2]) for row in matches}


def nvidia_memory(text: str) -> dict[int, Memory]:
    """Parse the same, with `memory.used,memory.total` at its end."""
    amount = rf"\s*({_MEGABYTES})\s*(?:MiB)?\s*"
    matches = re.finditer(rf"(?m)^\s*({_INDEX})\s*,[^,\n]*,{amount},{amount}$", text)
    return {int(row[1]): Memory(float(row[2]), float(row[3])) for row in matches}


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
    memory: Memory | None


def npu_table(text: str) -> dict[int, float]:
    """Parse `npu-smi info`: two lines per chip; the second has its number and its utilisation."""
    return {number: chip.used for number, chip in _numbered(text) if chip.used is not None}


def npu_memory(text: str) -> dict[int, Memory]:
    """Parse the same: the HBM of each chip, or its memory where it has none."""
    return {number: chip.memory for number, chip in _numbered(text) if chip.memory is not None}


def _numbered(text: str) -> Iterator[tuple[int, _Chip]]:
    chips = list(_chips(text.splitlines()))
    numbers = [chip.card if chip.number is None else chip.number for chip in chips]
    if len(set(numbers)) < len(chips):  # each card numbers its own chips
        numbers = list(range(len(chips)))
    return zip(numbers, chips)


def _memory(cell: Iterable[str]) -> Memory | None:
    """The last pair `used / total` of a cell that is not empty: HBM comes after the other memory."""
    pairs = re.findall(rf"({_MEGABYTES})\s*/\s*({_MEGABYTES})", " ".join(cell))
    amounts = [Memory(float(used), float(total)) for used, total in pairs if int(total)]
    return amounts[-1] if amounts else None


def _chips(lines: Iterable[str]) -> Iterator[_Chip]:
    card: int | None = None
    for line in lines:
        if "Process id" in line:
            return  # the second table
        cells = [cell.split() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 3 or not all(cells) or not re.fullmatch(_INDEX, cells[0][0]):
            continue
        (first, *more), (second, *_), (used, *memory) = cells
        if ":" not in second and second != "NA":  # no bus ID: the line with the health of a card
            card = int(first)
        elif card is not None:
            number = int(more[0]) if more and re.fullmatch(_INDEX, more[0]) else None
            percent = float(used) if re.fullmatch(_NUMBER, used) else None
            yield _Chip(card, number, percent, _memory(memory))
            card = None
