"""Where the folders of one job are: the same for every phase, run and worker.

What is relative in its document begins where the worker stood that saw the job first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from everstep.backends.local.database.store import Db, Store
from everstep.backends.local.settings import LocalSettings
from everstep.core.world import FenceOrder, StartOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The folders of one job."""

    base: Path
    own: str | None  # where it has its things if it names no model_dir

    def at(self, named: str) -> str:
        return os.path.normpath(self.base / named)

    def model_dir(self, named: str | None) -> str | None:
        return self.own if named is None else self.at(named)

    def checkpoints(self, named: str | None) -> str | None:
        return None if named is None else self.at(named)

    def named(self, folders: Mapping[str, str]) -> dict[str, str]:
        """All of them, each with the field of the document that names it."""
        own = {} if self.own is None else {self.own: "model_dir"}
        return {self.at(folder): field for folder, field in folders.items()} | own

    def to_fence(self, order: FenceOrder) -> FenceOrder:
        """The order with its folders as everybody finds them."""
        return replace(
            order,
            workdir=None if order.workdir is None else self.at(order.workdir),
            model_dir=self.model_dir(order.model_dir),
            checkpoints_path=self.checkpoints(order.checkpoints_path),
        )

    def to_start(self, order: StartOrder) -> StartOrder:
        """The order with its folders as everybody finds them."""
        return replace(
            order,
            workdir=self.at(order.workdir),
            model_dir=self.model_dir(order.model_dir),
            checkpoints_path=self.checkpoints(order.checkpoints_path),
        )


class KnownFolders:
    """Those of every job that was asked for; the base of a new one is noted in the books."""

    def __init__(self, settings: LocalSettings) -> None:
        self._jobs = settings.jobs
        self._known: dict[str, Folders] = {}

    async def of(self, store: Store, job: str) -> Folders:
        if (found := self._known.get(job)) is None:
            base = await store.run(lambda db: _base(db, job))
            own = None if self._jobs is None else str(self._jobs.absolute() / quote(job, safe=" "))
            found = self._known[job] = Folders(base=Path(base), own=own)
        return found

    async def anew(self, store: Store, job: str) -> Folders:
        """Of a job that other books had, which alone knew where its relative folders begin: here."""
        await store.run(lambda db: db.execute("DELETE FROM bases WHERE job = ?", (job,)))
        self.forget(job)
        return await self.of(store, job)

    def forget(self, job: str) -> None:
        self._known.pop(job, None)


def _base(db: Db, job: str) -> str:
    db.execute("INSERT INTO bases VALUES (?, ?) ON CONFLICT DO NOTHING", (job, str(Path.cwd())))
    row = db.execute("SELECT base FROM bases WHERE job = ?", (job,)).fetchone()
    return str(row["base"])
