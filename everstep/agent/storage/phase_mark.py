"""When a phase began, by the clock of the storage: what was saved before is not its own checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from everstep.agent.storage import files

MARK = ".everstep/phase"
MARK_MAX = 4096


def ensure(folder: str, phase: str) -> None:
    """Mark that the phase begins now, unless it is marked already. Raises OSError."""
    path = Path(folder) / MARK
    if _phase(path) != phase:
        os.makedirs(path.parent, exist_ok=True)  # noqa: PTH103  # pathlib's takes a mode for the last one alone
        files.replace(path, phase)


def began(folder: str, phase: str | None) -> float | None:
    """The time of the mark; None: the phase has no mark, so every checkpoint counts."""
    path = Path(folder) / MARK
    if phase is None or _phase(path) != phase:
        return None
    return path.stat().st_mtime


def _phase(path: Path) -> str | None:
    try:
        return files.read(path, MARK_MAX).decode(errors="replace")
    except (OSError, files.NotPlain, files.TooLarge):
        return None
