"""A look at what the local cluster has in a state directory, for commands. Changes nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from everstep.agent_client.link import NoAnswer, Refused
from everstep.backends.agents.pod import Pod
from everstep.backends.local.database import pods
from everstep.backends.local.database.store import SCHEMA, Db, Store
from everstep.backends.local.reconciling.agents import AgentFolder
from everstep.backends.local.reconciling.liveness import Life, agent_of
from everstep.backends.local.settings import LocalSettings
from everstep.backends.tools import Examined, SilentAgent

WAIT_S = 2.0
ANSWER_S = 3.0
"""An agent that lives answers in milliseconds; on a machine that is very busy, in seconds."""


async def silent(home: Path) -> tuple[SilentAgent, ...]:
    """The agents of pods, each asked once, that live and do not answer."""
    settings = LocalSettings(home=home)
    if not settings.database.exists():
        return ()
    with closing(Store(settings.database)) as store:
        everybody = await store.run(pods.everybody)
    asked = [p for p in everybody if p.has_answered and not p.is_lost and p.dead_at is None]
    found = await asyncio.gather(*(_silent(settings.folder(pod.uid), pod) for pod in asked))
    return tuple(agent for agent in found if agent is not None)


async def _silent(folder: AgentFolder, pod: Pod) -> SilentAgent | None:
    try:
        await folder.ask("GET", "/v1/state?since=0&wait_s=0", within_s=ANSWER_S)
    except Refused:
        return None
    except NoAnswer:
        if folder.life() is Life.GONE:
            return None  # which the cluster sees for itself
        seen = agent_of(folder.path)
        pid, is_stopped = (None, False) if seen is None else (seen.pid, seen.is_stopped)
        return SilentAgent(
            job=pod.job, slot=pod.slot, node=pod.node, pid=pid, is_stopped=is_stopped
        )
    return None


def examine(home: Path) -> Examined:
    settings = LocalSettings(home=home)
    living = tuple(sorted(settings.living()))
    books = settings.database
    if not books.exists():
        return Examined(books=books, is_there=False, strays=living)
    try:
        uri = f"file:{quote(str(books))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=WAIT_S)) as db:
            problem = _damage(db) or _other_schema(db)
            known = set() if problem else {uid for (uid,) in db.execute("SELECT uid FROM pods")}
    except sqlite3.Error as error:
        problem, known = str(error), set()
    if problem:  # whose the agents are cannot be told
        return Examined(books=books, is_there=True, problem=problem)
    return Examined(
        books=books,
        is_there=True,
        agents=tuple(uid for uid in living if uid in known),
        strays=tuple(uid for uid in living if uid not in known),
    )


def _damage(db: Db) -> str | None:
    (said,) = db.execute("PRAGMA quick_check(1)").fetchone()
    return None if said == "ok" else str(said)


def _other_schema(db: Db) -> str | None:
    """The first column of ours that is not there. Tables that are missing are made when needed."""
    with closing(sqlite3.connect(":memory:")) as ours:
        ours.executescript(SCHEMA)
        wanted = {name: _columns(ours, name) for name in _tables(ours)}
    for name in sorted(wanted.keys() & _tables(db)):
        missing = sorted(wanted[name] - _columns(db, name))
        if missing:
            return f"another version made them: {name} has no {missing[0]}"
    return None


def _tables(db: Db) -> set[str]:
    rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return {name for (name,) in rows if not name.startswith("sqlite_")}


def _columns(db: Db, table: str) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,))}
