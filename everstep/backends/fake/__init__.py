"""A cluster in memory with a virtual clock and faults on demand, for tests and simulations.

Reading order: `model.py` (what there is), `cluster.py` (the verbs), `training.py` (what jobs do),
`faults.py` (what can go wrong), `holders.py` (when time passes), `backend.py` and `client.py` (the
protocol, here and over a socket).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everstep.backends.tools import Tools

if TYPE_CHECKING:
    from everstep.backends.settings import BackendSettings


def settings_class() -> type[BackendSettings]:
    """The settings with which a worker opens a fake cluster."""
    from everstep.backends.fake.worker_settings import FakeWorkerSettings

    return FakeWorkerSettings


def open_tools(*, address: str | None = None, **_settings: Any) -> Tools:
    """The machine of the cluster that listens there."""
    from everstep.backends.fake.client import FakeTools

    return FakeTools(address)
