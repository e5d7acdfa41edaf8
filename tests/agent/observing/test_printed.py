"""What tools of several versions print, sound and broken, and what is read from it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.agent.observing.tool_output import (
    Memory,
    npu_memory,
    npu_table,
    npu_usages,
    nvidia,
    nvidia_memory,
)

RECORDINGS = Path(__file__).with_name("recordings")
Reader = Callable[[str], dict[int, float]]

READ: tuple[tuple[str, Reader, dict[int, float]], ...] = (
    ("nvidia-query", nvidia, {0: 37, 1: 98, 2: 0, 3: 100}),
    ("nvidia-memory", nvidia, {0: 37, 1: 98, 3: 5}),
    ("nvidia-partly", nvidia, {0: 37, 4: 5}),
    ("nvidia-units", nvidia, {0: 37, 1: 98}),
    ("nvidia-no-driver", nvidia, {}),
    ("nvidia-lost", nvidia, {}),
    ("nvidia-mismatch", nvidia, {}),
    ("nvidia-cut-off", nvidia, {0: 3}),
    ("npu-usages-910b", partial(npu_usages, index=0), {0: 61}),
    ("npu-usages-two-chips", partial(npu_usages, index=3), {3: 51}),
    ("npu-usages-na", partial(npu_usages, index=0), {}),
    ("npu-usages-no-such-card", partial(npu_usages, index=9), {}),
    ("npu-table-910b", npu_table, {0: 61, 1: 0}),
    ("npu-table-a3", npu_table, {0: 12, 1: 13, 2: 14, 3: 15}),
    ("npu-table-310", npu_table, {0: 41, 1: 7}),
    ("npu-table-two-chips", npu_table, {0: 20, 1: 30}),
    ("npu-table-no-driver", npu_table, {}),
    ("npu-table-cut-off", npu_table, {}),
)


@pytest.mark.parametrize(("name", "read", "expected_steps"), READ, ids=[row[0] for row in READ])
def test_read(name: str, read: Reader, expected_steps: dict[int, float]) -> None:
    text = (RECORDINGS / f"{name}.txt").read_text(encoding="utf-8")
    assert read(text) == expected_steps


MEMORY: tuple[tuple[str, Callable[[str], dict[int, Memory]], dict[int, Memory]], ...] = (
    (
        "nvidia-memory",
        nvidia_memory,
        {0: Memory(71840, 81559), 1: Memory(1024, 81559), 2: Memory(3, 81559)},
    ),
    ("nvidia-query", nvidia_memory, {}),
    ("nvidia-cut-off", nvidia_memory, {}),
    (
        "npu-table-910b",
        npu_memory,
        {0: Memory(55123, 65536), 1: Memory(3346, 65536), 2: Memory(3346, 65536)},
    ),
    ("npu-table-310", npu_memory, {0: Memory(2706, 8192), 1: Memory(2706, 8192)}),
    ("npu-table-no-driver", npu_memory, {}),
    ("npu-table-cut-off", npu_memory, {}),
)


@pytest.mark.parametrize(("name", "read", "memory"), MEMORY, ids=[row[0] for row in MEMORY])
def test_memory_is_read(
    name: str, read: Callable[[str], dict[int, Memory]], memory: dict[int, Memory]
) -> None:
    assert read((RECORDINGS / f"{name}.txt").read_text(encoding="utf-8")) == memory


def test_every_recording_is_read() -> None:
    assert {path.stem for path in RECORDINGS.iterdir()} == {row[0] for row in READ}


READERS: tuple[Reader, ...] = (nvidia, npu_table, partial(npu_usages, index=0))
PIECES = st.sampled_from(
    [
        *"|+-=,: 059\n\t%",
        "NPU",
        "Chip",
        "Phy-ID",
        "AICore(%)",
        "0000:C1:00.0",
        "OK",
        "Process id",
        "Aicore Usage Rate(%)",
        "²",
        "٣",
        "9" * 5_000,
    ]
)


@given(st.one_of(st.text(), st.lists(PIECES, max_size=60).map("".join)))
def test_garbage_says_nothing_and_breaks_nothing(text: str) -> None:
    for read in READERS:
        assert all(value >= 0 for value in read(text).values())
