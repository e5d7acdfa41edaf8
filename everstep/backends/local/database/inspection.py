"""A look at the file of the books that changes nothing, whatever is wrong with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from everstep.backends.local.database import pods
from everstep.backends.local.database.store import SCHEMA, Db

WAIT_S = 2.0


@contextmanager
def read_only(path: Path) -> Iterator[Db]:
    uri = f"file:{quote(str(path))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=WAIT_S, isolation_level=None)) as db:
        db.row_factory = sqlite3.Row
        yield db


def inspect(path: Path) -> tuple[str | None, set[str]]:
    """Why the books there cannot be used, and the uids of their pods."""
    try:
        with read_only(path) as db:
            problem = _damage(db) or _other_schema(db)
            if problem:
                return problem, set()
            return None, set(pods.uids(db))
    except sqlite3.Error as error:
        return str(error), set()


def _damage(db: Db) -> str | None:
    (report,) = db.execute("PRAGMA quick_check(1)").fetchone()
    return None if report == "ok" else str(report)


def _other_schema(db: Db) -> str | None:
    """The first column of ours that is not there. Tables that are missing are made when needed."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(SCHEMA)
        tables = {name: _columns(fresh, name) for name in _tables(fresh)}
    for name in sorted(tables.keys() & _tables(db)):
        missing = sorted(tables[name] - _columns(db, name))
        if missing:
            return f"another version made them: {name} has no {missing[0]}"
    return None


def _tables(db: Db) -> set[str]:
    rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return {name for (name,) in rows if not name.startswith("sqlite_")}


def _columns(db: Db, table: str) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,))}
