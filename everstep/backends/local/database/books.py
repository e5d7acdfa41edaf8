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

_NUMBERS = 1 << 62  # every number of a fact is below

# -- Facts --------------------------------------------------------------------------------------


def tell(db: Db, job: str, fact: Fact) -> int | None:
    """Report the fact to the job. Returns its number, None if its identity was reported before."""
    row = db.execute(
        "INSERT OR IGNORE INTO facts (job, id, fact) VALUES (?, ?, ?) RETURNING n",
        (job, fact.id, json.dumps(asdict(fact))),
    ).fetchone()
    return None if row is None else int(row["n"])


def facts_after(db: Db, job: str, cursor: int, *, below: int | None = None) -> dict[int, Fact]:
    """What was reported to the job after the cursor, by its numbers; `below` is the first left out."""
    rows = db.execute(
        "SELECT n, fact FROM facts WHERE job = ? AND n > ? AND n < ? ORDER BY n",
        (job, cursor, _NUMBERS if below is None else below),
    )
    return {row["n"]: Fact(**json.loads(row["fact"])) for row in rows}


def newest_number(db: Db) -> int:
    """The newest number that was given to a fact of any job."""
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'facts'").fetchone()
    return 0 if row is None else int(row["seq"])


def fact_id(db: Db, job: str, number: int) -> str | None:
    """The fact of this number. None: it was dropped. Empty: it is another job's."""
    row = db.execute("SELECT job, id FROM facts WHERE n = ?", (number,)).fetchone()
    if row is None:
        return None
    return str(row["id"]) if row["job"] == job else ""


# -- Jobs ---------------------------------------------------------------------------------------

RECORDS = TypeAdapter(JobRecord)


def job(db: Db, job_id: str) -> JobRecord:
    """The record of the job; an empty one if it is not known."""
    row = db.execute("SELECT body FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return JobRecord(id=job_id) if row is None else _read(row["body"])


def all_jobs(db: Db) -> dict[str, JobRecord]:
    """The record of each job, by its ID."""
    return {row["id"]: _read(row["body"]) for row in db.execute("SELECT id, body FROM jobs")}


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
