"""Where the folders of each job are, on this machine.

What is relative in its document begins where the worker stood that saw the job first.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from everstep.backends.agents.folders import JobFolders
from everstep.backends.local.database.store import Db, Store
from everstep.backends.local.settings import LocalSettings


class KnownFolders:
    """The folders of jobs, cached. The base of a new job is stored in the books."""

    def __init__(self, settings: LocalSettings) -> None:
        self._jobs = settings.jobs
        self._by_job: dict[str, JobFolders] = {}

    async def of(self, store: Store, job: str) -> JobFolders:
        if (folders := self._by_job.get(job)) is None:
            base = await store.run(lambda db: _base(db, job))
            own_folder = (
                None if self._jobs is None else str(self._jobs.absolute() / quote(job, safe=" "))
            )
            folders = self._by_job[job] = JobFolders(base=base, default_model_dir=own_folder)
        return folders

    async def reload(self, store: Store, job: str) -> JobFolders:
        """Folders of a job of other books. Only those had its base, so its relative folders begin here."""
        await store.run(lambda db: db.execute("DELETE FROM bases WHERE job = ?", (job,)))
        self.forget(job)
        return await self.of(store, job)

    def forget(self, job: str) -> None:
        self._by_job.pop(job, None)


def _base(db: Db, job: str) -> str:
    db.execute("INSERT INTO bases VALUES (?, ?) ON CONFLICT DO NOTHING", (job, str(Path.cwd())))
    row = db.execute("SELECT base FROM bases WHERE job = ?", (job,)).fetchone()
    return str(row["base"])
