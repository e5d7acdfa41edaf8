"""Whether a generation may go on: by the fences of its job, and by the polls of its workers.

`guard` says what to watch, `polled` that a worker polled the agent, and `why` is called at least once a
second: it returns the reason for which the ranks have to end, if there is one. The time without contact grows
from look to look, and any poll and any fence that was read sets it back to 0.

Each folder's fence is read once a second in another thread, so storage that hangs delays neither the watch
nor the reading of another folder. A reading that does not return counts as failed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from everstep.agent.future import Future
from everstep.agent.storage import fence, reading

TICK_S = 1.0
STALL_S = 2.0
"""Most time that one look counts: a longer gap is a stall of this process, or the machine slept."""
FIRST_S = 3.0
"""Time that a new watch has for its first reading, however long ago the last poll was."""


class Reading:
    """The fence of one folder, as it was read last."""

    def __init__(self) -> None:
        self.newest = 0
        self.due = 0.0
        self.is_good = False  # whether the last reading succeeded
        self.answer: Future[int] | None = None  # of the reading in progress


def _generation(folder: str, owner: fence.FenceOwner, newest: int, first: str) -> int:
    """The owner's newest generation in this folder. Raises OSError.

    `first`: the first of the owner's folders. One inside it may have no fence: it says nothing then.
    """
    with contextlib.suppress(FileNotFoundError):
        own_fence = fence.read(folder).get(owner)
        if own_fence is not None:
            return max(newest, own_fence.generation)
    # Before the first fence there is only the folder; one that vanished is not read.
    if newest or not Path(folder).is_dir() or (folder != first and _is_inside(folder, first)):
        raise FileNotFoundError(folder)
    return 0


def _is_inside(folder: str, first: str) -> bool:
    return Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(first))


class FenceWatch:
    """Watches the fence for a set of ranks and gives the reason for which they have to end."""

    def __init__(self, was_read: Callable[[], None]) -> None:
        self.generation = 0
        self.fence_s = 0.0
        self._was_read = was_read
        self._readings: dict[tuple[str, fence.FenceOwner], Reading] = {}
        self._first_folder = ""
        self._without_contact_s = 0.0
        self._polled_at = time.monotonic()

    def guard(self, order: dict[str, Any]) -> None:
        """Guard this generation from now on."""
        self.fence_s = order["fence_s"]
        if order["generation"] != self.generation:
            self._without_contact_s = min(order["unpolled_s"], max(0.0, self.fence_s - FIRST_S))
        self.generation = order["generation"]
        job, cluster = order["owner"]
        places = [(folder, (job, cluster)) for folder in order["folders"]]
        self._readings = {key: self._readings.get(key) or Reading() for key in places}
        self._first_folder = next(iter(order["folders"]), "")

    def polled(self) -> None:
        """A worker polled the agent."""
        self._without_contact_s = 0.0

    def why(self) -> str | None:
        """Look now. Returns why the guarded ranks have to end, if they have to."""
        now = time.monotonic()
        passed, self._polled_at = now - self._polled_at, now
        self._without_contact_s += min(passed, STALL_S)
        were_read = [self._is_read(*key, now) for key in self._readings]
        # Without folders no fence can hold by time, so no time ends these ranks.
        if any(were_read) or not self._readings:
            self._without_contact_s = 0.0
        if not self.generation:
            return None
        newest = max((reading.newest for reading in self._readings.values()), default=0)
        if newest > self.generation:
            return f"generation {newest} is in the fence"
        if self._without_contact_s > self.fence_s and not self._has_just_begun(now):
            return f"no poll and no fence for {self.fence_s:g} s"
        return None

    def _has_just_begun(self, now: float) -> bool:
        """Whether this look began a reading of storage that was readable before: wait for its result."""
        due_readings = (one for one in self._readings.values() if one.due == now + TICK_S)
        return any(one.is_good and one.answer is not None for one in due_readings)

    def _is_read(self, folder: str, owner: fence.FenceOwner, now: float) -> bool:
        """Whether a reading has succeeded since the last look. Begins the next one if it is due."""
        one, has_succeeded = self._readings[folder, owner], False
        if one.answer is not None and one.answer.done():
            try:
                one.newest, one.is_good = one.answer.result(), True
            except OSError:
                one.is_good = False
            one.answer, has_succeeded = None, one.is_good
        if one.answer is None and now >= one.due:
            one.due = now + TICK_S
            with contextlib.suppress(reading.StorageHangs):
                work = partial(_generation, folder, owner, one.newest, self._first_folder)
                one.answer = reading.begin(folder, work)
                one.answer.add_done_callback(lambda _: self._was_read())
        return has_succeeded
