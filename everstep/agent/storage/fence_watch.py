"""Whether a generation may go on: by the fences of its job, and by who still asks for it.

A thread for each folder reads its fence once a second: storage that hangs holds up neither who watches
nor the reading of another folder. What does not come back is as good as not readable.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep.agent.storage import fence

TICK_S = 1.0
STALL_S = 2.0
"""A look that came later than this was our own stall (or the machine slept): the rest is not counted."""
FIRST_S = 3.0
"""Who begins to watch has this time for its first reading, however long nobody has asked."""


class Reading:
    """The fence of one folder, as it was read last."""

    def __init__(self, folder: str, owner: fence.Owner, was_read: Callable[[], None]) -> None:
        self.newest = 0
        self.good = 0  # how often it could be read
        self.is_wanted = True
        self._folder, self._owner, self._was_read = folder, owner, was_read
        threading.Thread(target=self._work, name=f"fence of {folder}", daemon=True).start()

    def _work(self) -> None:
        while self.is_wanted:
            before = time.monotonic()
            if self._is_read():
                self.good += 1
            self._was_read()
            time.sleep(max(0.0, before + TICK_S - time.monotonic()))

    def _is_read(self) -> bool:
        try:
            own = fence.read(self._folder).get(self._owner)
        except FileNotFoundError:
            own = None
        except OSError:
            return False
        if own is None:
            # Before the first fence there is only the folder; one that vanished is not read.
            return not self.newest and Path(self._folder).is_dir()
        self.newest = max(self.newest, own.generation)
        return True


class FenceWatch:
    """What is guarded, and why it has to end, if it has."""

    def __init__(self, was_read: Callable[[], None]) -> None:
        self.generation = 0
        self.fence_s = 0.0
        self._was_read = was_read
        self._wanted: set[tuple[str, fence.Owner]] = set()
        self._readings: dict[tuple[str, fence.Owner], Reading] = {}
        self._good_before = 0
        self._dark_s = 0.0
        self._looked = time.monotonic()

    def guard(self, told: dict[str, Any]) -> None:
        """From now on this."""
        self.fence_s = told["fence_s"]
        if told["generation"] != self.generation:
            self._dark_s = min(told["unpolled_s"], max(0.0, self.fence_s - FIRST_S))
        self.generation = told["generation"]
        job, cluster = told["owner"]
        self._wanted = {(folder, (job, cluster)) for folder in told["folders"]}

    def polled(self) -> None:
        self._dark_s = 0.0

    def why(self) -> str | None:
        """Look now; why what is guarded has to end."""
        self._read_what_is_wanted()
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        self._dark_s += min(passed, STALL_S)
        good = sum(reading.good for reading in self._readings.values())
        if good != self._good_before or not self._wanted:
            self._dark_s = 0.0
        self._good_before = good
        if not self.generation:
            return None
        newest = max((reading.newest for reading in self._readings.values()), default=0)
        if newest > self.generation:
            return f"generation {newest} is in the fence"
        if self._dark_s > self.fence_s:
            return f"no poll and no fence for {self.fence_s:g} s"
        return None

    def _read_what_is_wanted(self) -> None:
        for one in self._readings.keys() - self._wanted:
            self._readings.pop(one).is_wanted = False
        for folder, owner in self._wanted - self._readings.keys():
            try:
                self._readings[folder, owner] = Reading(folder, owner, self._was_read)
            except RuntimeError:  # the machine gives us no thread: it is not readable yet
                continue

    def end(self) -> None:
        """Nobody looks any more."""
        self._wanted = set()
        self._read_what_is_wanted()
