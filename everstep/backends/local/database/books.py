"""The books: the record of each job, and the facts reported to it. Each function is part of a transaction."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache

from pydantic import TypeAdapter

from everstep.backends.agents.job_record import JobRecord
from everstep.backends.local.database.store import Db
from everstep.core.facts import Fact
from everstep.core.world import JobRef, Leftover

# -- Facts --------------------------------------------------------------------------------------


def tell(db: Db, job: str, fact: Fact) -> None:
    """The job is told, once for each identity, whoever tells it."""
    db.execute(
        "INSERT OR IGNORE INTO facts (job, id, fact) VALUES (?, ?, ?)",
        (job, fact.id, json.dumps(asdict(fact))),
    )


def facts_after(db: Db, job: str, cursor: int) -> tuple[tuple[Fact, ...], int]:
    """What the job was told after the cursor, and the cursor after that."""
    rows = db.execute(
        "SELECT n, fact FROM facts WHERE job = ? AND n > ? ORDER BY n", (job, cursor)
    ).fetchall()
    facts = tuple(Fact(**json.loads(row["fact"])) for row in rows)
    return facts, (rows[-1]["n"] if rows else cursor)


# -- Jobs ---------------------------------------------------------------------------------------

RECORDS = TypeAdapter(JobRecord)


def job(db: Db, job_id: str) -> JobRecord:
    """The record of the job; an empty one if it is not known."""
    row = db.execute("SELECT body FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return JobRecord(id=job_id) if row is None else _read(row["body"])


@lru_cache(maxsize=256)
def _read(body: str) -> JobRecord:
    """The record in this text, which most transactions find unchanged. Nothing changes a record in place."""
    return RECORDS.validate_json(body)


def store(db: Db, record: JobRecord) -> None:
    body = RECORDS.dump_json(record, exclude_defaults=True).decode()
    db.execute(
        "INSERT INTO jobs (id, body) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body",
        (record.id, body),
    )


def leftovers(db: Db) -> tuple[Leftover, ...]:
    rows = db.execute(
        "SELECT id, newest_run, server FROM jobs WHERE id IN"
        " (SELECT job FROM pods UNION SELECT job FROM queue UNION SELECT job FROM claims) ORDER BY id"
    ).fetchall()
    return tuple(
        Leftover(job=JobRef(id=row["id"], run=row["newest_run"]), server=row["server"])
        for row in rows
    )
