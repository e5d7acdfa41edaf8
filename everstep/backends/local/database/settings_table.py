"""Values of the whole cluster by name. Each function is part of a transaction."""

from __future__ import annotations

from everstep.backends.local.database.store import Db


def setting(db: Db, name: str) -> str | None:
    row = db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row["value"])


def store_setting(db: Db, name: str, value: str) -> None:
    db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))


def next_number(db: Db, name: str) -> int:
    """A number never returned before, for identities."""
    number = int(setting(db, f"number/{name}") or 0) + 1
    store_setting(db, f"number/{name}", str(number))
    return number
