"""A cluster in memory with a virtual clock and faults on demand, for tests and simulations.

Reading order: `model.py` (what there is), `cluster.py` (the verbs), `training.py` (what jobs do),
`faults.py` (what can go wrong), `holders.py` (when time passes), `backend.py` and `client.py` (the
protocol, here and over a socket).
"""

from __future__ import annotations

from typing import Any

from everstep.backends.base import Backend
from everstep.backends.tools import Tools


async def open_backend(*, address: str | None = None, **settings: Any) -> Backend:
    """With an address the cluster that listens there, else a new one in this process."""
    if address is not None:
        from everstep.backends.fake.client import FakeClient

        return FakeClient(address)
    from everstep.backends.fake.backend import FakeBackend
    from everstep.backends.fake.settings import FakeSettings

    return FakeBackend(FakeSettings(**settings))


def open_tools(*, address: str | None = None, **_settings: Any) -> Tools:
    """The machine of the cluster that listens there."""
    from everstep.backends.fake.tools import FakeTools

    return FakeTools(address)
