"""The nodes of this machine, as its books have them, for whoever asks beside the worker."""

from __future__ import annotations

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
    store = Store(settings.database)
    try:
        offset = await store.run(clock.anchor)
        return await store.run(lambda db: books.node_views(db, settings, clock.now(offset)))
    finally:
        store.close()
