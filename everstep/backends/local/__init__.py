"""The local backend: real processes on this machine. The embedded default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everstep.backends.local.backend import LocalBackend
from everstep.backends.local.settings import LocalSettings
from everstep.backends.local.tools import LocalTools


async def open_backend(*, home: Path, **said: Any) -> LocalBackend:
    """The cluster whose books are in this state directory, an absolute path."""
    return await LocalBackend.open(LocalSettings(home=home, jobs=home / "jobs", **said))


def open_tools(*, home: Path, **_said: Any) -> LocalTools:
    """The machine of this cluster, whether or not a worker serves it."""
    return LocalTools(home)
