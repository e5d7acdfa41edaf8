"""How a worker reads storage: in a thread, within a time, and as long as the reader is not cancelled."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from everstep.backends.local.reconciling.slow_storage import read
from tests.support.patience import HUNG_S


async def test_a_cancel_that_comes_with_the_answer_is_not_lost(tmp_path: Path) -> None:
    """A step whose only cancel is lost here goes on to its end, however long that takes."""
    readers, answers = list[threading.Thread](), threading.Event()

    def work() -> bool:
        readers.append(threading.current_thread())
        return answers.wait(HUNG_S)

    reading = asyncio.create_task(read(str(tmp_path), work))
    while not readers:
        await asyncio.sleep(0)
    answers.set()
    readers[0].join()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
