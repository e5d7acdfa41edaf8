"""A look at what the local cluster left in a state directory, for `everstep doctor`. Changes nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from everstep.backends.local.agents import Folder
from everstep.backends.local.settings import LocalSettings
from everstep.backends.local.store import SCHEMA, Db

WAIT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The books, and the agents that live, as pods of theirs or as nobody's."""

    books: Path
    is_there: bool
    problem: str | None = None  # why nothing can be read in the books
    agents: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()


def examine(home: Path) -> Found:
    settings = LocalSettings(home=home)
    living = _living(settings)
    books = settings.database
    if not books.exists():
        return Found(books=books, is_there=False, strays=living)
    try:
        uri = f"file:{quote(str(books))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=WAIT_S)) as db:
            problem = _damage(db) or _other_schema(db)
            known = set() if problem else {uid for (uid,) in db.execute("SELECT uid FROM pods")}
    except sqlite3.Error as error:
        problem, known = str(error), set()
    if problem:  # whose the agents are cannot be told
        return Found(books=books, is_there=True, problem=problem)
    return Found(
        books=books,
        is_there=True,
        agents=tuple(uid for uid in living if uid in known),
        strays=tuple(uid for uid in living if uid not in known),
    )


def _living(settings: LocalSettings) -> tuple[str, ...]:
    folders = settings.agents.iterdir() if settings.agents.is_dir() else ()
    return tuple(sorted(path.name for path in folders if Folder(path=path).is_locked()))


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
