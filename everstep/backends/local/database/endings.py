"""When ranks of a job ended in the middle of something. Each function is part of a transaction.

A file that says nothing of itself and had not been still for a while when its writer ended may be cut
off, and later nobody can see that: so the moments are kept, for as long as the job's ID is known.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from everstep.agent import wire
from everstep.agent_client.watch import WatchedAgent
from everstep.backends.local.database.store import Db


def note(
    db: Db, job: str, watched: WatchedAgent | None, *, now: float, has_ended: bool = False
) -> None:
    """What is known of this agent's ranks; with `has_ended` those it last saw alive ended just now.

    `now` is the cluster's time. Kept is the machine's, by which files are dated.
    """
    state = watched.state if watched is not None else None
    run = state["run"] if state is not None else None
    ages = _ages(run["ranks"] if run is not None else (), now=now, has_ended=has_ended)
    moments = [(job, int(time.time() - age)) for age in ages]
    db.executemany("INSERT OR IGNORE INTO endings VALUES (?, ?)", moments)


def _ages(ranks: Iterable[wire.RankSeen], *, now: float, has_ended: bool) -> Iterable[float]:
    """How long ago each of them ended badly."""
    for rank in ranks:
        if rank["exited_at"] is not None:
            if rank["code"] != 0:  # who ended well had closed its files
                yield now - rank["exited_at"]
        elif has_ended:
            yield 0.0


def is_well(watched: WatchedAgent | None, generation: int) -> bool:
    """Whether all ranks of this generation that the agent had are known to have ended well."""
    state = watched.state if watched is not None else None
    run = state["run"] if state is not None else None
    if run is None or run["generation"] != generation or run["started_at"] is None:
        return False
    return all(rank["code"] == 0 for rank in run["ranks"])


def of(db: Db, job: str) -> tuple[float, ...]:
    rows = db.execute("SELECT at FROM endings WHERE job = ? ORDER BY at", (job,)).fetchall()
    return tuple(float(row["at"]) for row in rows)
