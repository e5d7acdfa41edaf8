"""A job is adopted although its storage hangs: its processes that cannot read a fence end by themselves."""

from __future__ import annotations

import threading

import pytest

from everstep.agent.storage import fence
from everstep.backends.local.reconciling import adopting
from tests.support.patience import HUNG_S

FOLDERS = ["model", "checkpoints", "elsewhere"]
OWNER = ("demo", "lost")


async def test_the_fences_of_all_folders_are_read_and_outdated_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after the other, folders that hang take longer than a worker waits for one call."""
    reads, writes = threading.Barrier(len(FOLDERS)), threading.Barrier(len(FOLDERS))
    outdated: list[tuple[str, int]] = []

    def read(_folder: str) -> dict[fence.FenceOwner, fence.Fence]:
        reads.wait(HUNG_S)
        return {OWNER: fence.Fence("demo", "r", "lost", 7)}

    def outdate(folder: str, newer: fence.Fence) -> None:
        writes.wait(HUNG_S)
        outdated.append((folder, newer.generation))

    monkeypatch.setattr(adopting, "FENCES_S", HUNG_S)
    monkeypatch.setattr(fence, "read", read)
    monkeypatch.setattr(fence, "outdate", outdate)
    assert await adopting.outdate(FOLDERS, OWNER, generation=3) == 7
    assert sorted(outdated) == [(folder, 8) for folder in sorted(FOLDERS)]
