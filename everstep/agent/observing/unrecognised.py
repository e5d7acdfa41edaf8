"""Files that a run writes where its checkpoints should be, and that no pattern takes for checkpoints."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from everstep.agent.storage import checkpoint_names
from everstep.agent.storage.checkpoint_formats import TRACKERS
from everstep.protocol import bounds, wire

NAMES_MOST = 10_000
"""The most names of the folder that are looked at."""
USUAL_SUFFIXES = (".log", ".out", ".err", ".yaml", ".yml", ".toml", ".csv", ".md", ".py")
"""What scripts write beside checkpoints: logs, settings, tables of their losses."""
OF_TENSORBOARD = "events.out.tfevents"


class UnrecognisedFiles:
    """What was there at the first look is not the run's, unless it changes."""

    def __init__(self, folder: str, pattern: str | None) -> None:
        self._folder = Path(folder)
        self._pattern = pattern
        self._before: dict[str, int] | None = None
        self._since: float | None = None

    def check(self, now: float) -> wire.Unrecognised | None:
        """Raises OSError where the folder cannot be read; one that is not there has no files."""
        candidates = self._candidates()
        before = self._before = candidates if self._before is None else self._before
        new = [name for name, at in candidates.items() if before.get(name) != at]
        if not new:
            return None
        self._since = self._since or now
        example = max(new, key=lambda name: candidates[name])
        return {"since": self._since, "count": len(new), "example": bounds.plain(example)}

    def _candidates(self) -> dict[str, int]:
        """The names that are none of a checkpoint, each with the time of its last change."""
        candidates = {}
        try:
            with os.scandir(self._folder) as entries:
                for entry in itertools.islice(entries, NAMES_MOST):
                    if self._is_strange(entry.name):
                        candidates[entry.name] = entry.stat(follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:  # not yet, or one of them went while we looked
            pass
        return candidates

    def _is_strange(self, name: str) -> bool:
        if (
            name.startswith((".", OF_TENSORBOARD))
            or name.endswith(USUAL_SUFFIXES)
            or name in TRACKERS
        ):
            return False
        is_unfinished = checkpoint_names.is_unfinished(name)
        return not is_unfinished and checkpoint_names.read(name, self._pattern) is None
