"""The local backend: real processes on this machine. The embedded default."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.backends.local.tools import LocalTools

if TYPE_CHECKING:
    from everstep.backends.settings import BackendSettings


def settings_class() -> type[BackendSettings]:
    """How a worker opens the cluster whose books are in its state directory."""
    from everstep.backends.local.worker_settings import LocalWorkerSettings

    return LocalWorkerSettings


def open_tools(*, home: Path, **_options: Any) -> LocalTools:
    """The machine of this cluster, whether or not a worker serves it."""
    return LocalTools(home)
