"""The books of a local cluster: one SQLite file, safe for several workers and a kill at any moment.

Every change is one transaction that either happened or did not. All calls go through one thread, so
that a lock held by another worker never blocks this one's event loop. `write_lock` limits its own wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from everstep.agent.storage import permissions
from everstep.backends.local.database import write_lock
from everstep.core.errors import BackendUnavailable

T = TypeVar("T")
Db = sqlite3.Connection
BUSY_S = 10.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS nodes (
    name TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    isolated TEXT,                             -- why; NULL: it is not
    body TEXT NOT NULL,                        -- all else, as `nodes` writes it
    service TEXT AS (COALESCE(json_extract(body, '$.service'), 'ready')),
    since REAL AS (json_extract(body, '$.since')),
    teardown_s REAL AS (COALESCE(json_extract(body, '$.teardown_s'), 0))
);
CREATE TABLE IF NOT EXISTS isolated_devices (name TEXT PRIMARY KEY, reason TEXT NOT NULL);  -- NODE/3
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY,
    body TEXT NOT NULL,                        -- its `JobRecord`, without defaults
    newest INTEGER AS (COALESCE(json_extract(body, '$.newest'), 0)),
    newest_run TEXT AS (COALESCE(json_extract(body, '$.newest_run'), '')),
    server TEXT AS (COALESCE(json_extract(body, '$.server'), '')),
    placed INTEGER AS (json_extract(body, '$.placed')),
    fenced INTEGER AS (json_extract(body, '$.fenced')),
    fence_holds INTEGER AS (COALESCE(json_extract(body, '$.fence_holds'), 0))
);
CREATE TABLE IF NOT EXISTS claims (
    volume TEXT NOT NULL,
    path TEXT NOT NULL,                        -- inside the volume
    job TEXT NOT NULL,
    folder TEXT NOT NULL,                      -- as the job names it
    PRIMARY KEY (volume, path)
);
CREATE TABLE IF NOT EXISTS bases (job TEXT PRIMARY KEY, base TEXT NOT NULL);  -- of relative folders
CREATE TABLE IF NOT EXISTS queue (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL UNIQUE,
    placing TEXT NOT NULL                      -- the order
);
CREATE TABLE IF NOT EXISTS pods (
    uid TEXT PRIMARY KEY,
    job TEXT NOT NULL,
    slot INTEGER NOT NULL,
    node TEXT NOT NULL,
    generation INTEGER NOT NULL,               -- that made it
    devices TEXT NOT NULL,
    leaving INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,           -- its agent is gone
    ready INTEGER NOT NULL DEFAULT 0,          -- its agent answered once
    dead_at REAL,                              -- since then nothing of it runs any more
    grace_s REAL NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS pods_of_a_job ON pods (job, slot);
CREATE TABLE IF NOT EXISTS standbys (uid TEXT PRIMARY KEY);  -- pods that count as no slot's yet
CREATE TABLE IF NOT EXISTS spares (            -- pods that stand by, or stood by, for any slot
    uid TEXT PRIMARY KEY, ordered_at REAL NOT NULL, ready_at REAL
);
CREATE TABLE IF NOT EXISTS facts (
    n INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, id TEXT NOT NULL, fact TEXT NOT NULL,
    UNIQUE (job, id)
);
SELECT body, volume FROM jobs, claims LIMIT 0;  -- fails in books of an earlier version
"""


class Store:
    """The books, open. `run` is the only way in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = write_lock.of(path)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="books")
        self._db: Db | None = None
        self._identity: tuple[int, int] | None = None  # of the file that we have open

    async def run(self, work: Callable[[Db], T]) -> T:
        """Run `work` in a transaction, while no other process writes."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._within, work)

    def _within(self, work: Callable[[Db], T]) -> T:
        with self._connected() as db, self._lock.hold():
            db.execute("BEGIN IMMEDIATE")
            try:
                result = work(db)
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
        return result

    @contextmanager
    def _connected(self) -> Iterator[Db]:
        """The open database. Whatever is wrong with its file becomes BackendUnavailable."""
        try:
            db = self._opened()
            if _identity(self._path) != self._identity:
                raise BackendUnavailable(f"{self._path} was replaced by another file")
            yield db
        except FileNotFoundError:
            problem = f"EVERSTEP_HOME was moved or removed: {self._path} is not there"
            raise BackendUnavailable(problem) from None
        except (sqlite3.Error, OSError) as error:
            raise BackendUnavailable(f"{self._path}: {error}") from None

    async def changes(self) -> int:
        """A number that changes when another process has written."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._version)

    def _version(self) -> int:
        with self._connected() as db:
            (version,) = db.execute("PRAGMA data_version").fetchone()
        return int(version)

    def _opened(self) -> Db:
        if self._db is None:
            permissions.folder(self._path.parent)
            # Created here, because SQLite would create it with the permissions of the umask.
            with contextlib.suppress(FileExistsError):
                self._path.touch(permissions.FILE, exist_ok=False)
            db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
            db.row_factory = sqlite3.Row
            # What a killed worker had committed stays; only a machine that loses power may lose the
            # newest moments, and then it has lost its processes too.
            with self._lock.hold():
                db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + SCHEMA)
            self._db, self._identity = db, _identity(self._path)
        return self._db

    def close(self) -> None:
        self._thread.submit(self._close).result()
        self._thread.shutdown()

    def _close(self) -> None:
        if self._db is not None:
            with suppress(OSError), self._lock.hold():  # the last close empties the WAL
                self._db.close()
            self._db = None


def _identity(path: Path) -> tuple[int, int]:
    """Which file it is, whatever is put in its place."""
    status = path.stat()
    return status.st_dev, status.st_ino
