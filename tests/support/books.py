"""The books of a local cluster, as tests read and prepare them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from everstep.backends.agents.job_record import JobRecord
from everstep.backends.local.database import books, nodes, placing, pods
from everstep.backends.local.database.inspection import read_only
from everstep.backends.local.database.pods import LocalPod
from everstep.backends.local.database.settings_table import setting
from everstep.backends.local.database.store import Db, Store
from everstep.backends.local.settings import LocalSettings
from everstep.backends.rules.nodes import Node

T = TypeVar("T")

LOCK_AND_STOP = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("is stopped", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""  # a script that locks the database at its argument without our lock, and stops itself


@dataclass(frozen=True, slots=True, kw_only=True)
class BooksContent:
    """Everything in the books at one moment. Empty before there are any."""

    cluster: str | None = None  # its identity
    jobs: Mapping[str, JobRecord] = field(default_factory=dict)
    pods: tuple[LocalPod, ...] = ()  # those that leave included
    nodes: Mapping[str, Node] = field(default_factory=dict)
    isolated: tuple[str, ...] = ()  # nodes
    queue: tuple[str, ...] = ()  # jobs that wait for their places

    def job(self, job_id: str) -> JobRecord:
        return self.jobs.get(job_id, JobRecord(id=job_id))


def make_other_database(file: Path) -> None:
    """Make a database that is not of a local cluster."""
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE things (name TEXT)")


def read(home: Path) -> BooksContent:
    """The books in this state directory. Reading changes nothing, also while a worker serves them."""
    path = LocalSettings(home=home).database
    if not path.exists():
        return BooksContent()
    with read_only(path) as db:
        db.execute("BEGIN")
        return BooksContent(
            cluster=setting(db, "cluster"),
            jobs=books.all_jobs(db),
            pods=tuple(pods.all_pods(db)),
            nodes=nodes.every(db),
            isolated=tuple(sorted(name for name, why in nodes.isolated(db).items() if why)),
            queue=tuple(order.job.id for order in placing.queue(db)),
        )


def claims(home: Path) -> list[tuple[str, str]]:
    """Each folder that a job claims, with the job."""
    with read_only(LocalSettings(home=home).database) as db:
        rows = db.execute("SELECT job, folder FROM claims")
        return [(row["job"], row["folder"]) for row in rows]


def change(home: Path, work: Callable[[Db], T]) -> T:
    """One transaction in the books of this state directory, which are made if there are none."""

    async def run() -> T:
        with closing(Store(LocalSettings(home=home).database)) as store:
            return await store.run(work)

    with ThreadPoolExecutor(1) as thread:  # the caller's thread may have a running loop
        return thread.submit(asyncio.run, run()).result()


def make_table(home: Path, table: str) -> None:
    """A table as another version made it, in books of their own: `NAME (COLUMNS)`."""
    with closing(sqlite3.connect(LocalSettings(home=home).database)) as db:
        db.execute(f"CREATE TABLE {table}")
