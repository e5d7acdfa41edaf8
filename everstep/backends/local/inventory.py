"""The nodes of this machine, as its books have them, for whoever asks beside the worker."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from everstep.backends.local import books, clock
from everstep.backends.local.settings import LocalSettings
from everstep.backends.local.store import Store
from everstep.core.world import NodeView


async def nodes(home: Path) -> tuple[NodeView, ...]:
    """None where no local cluster was ever made in this state directory."""
    settings = LocalSettings(home=home)
    if not settings.database.exists():
        return ()
    with closing(Store(settings.database)) as store:
        offset = await store.run(clock.anchor)
        return await store.run(lambda db: books.node_views(db, settings, clock.now(offset)))


async def ensure_nodes(home: Path, count: int, *, devices: int) -> None:
    """The machine has at least so many; a worker that serves it uses new ones at once."""
    settings = LocalSettings(home=home, nodes=count, devices=devices)
    with closing(Store(settings.database)) as store:
        await store.run(lambda db: books.set_up(db, settings))
