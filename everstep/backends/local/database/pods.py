"""Pods as the books have them, as values. Each function is part of a transaction."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from everstep.backends.local.database import books, identity
from everstep.backends.local.database.store import Db
from everstep.backends.rules.nodes import Service
from everstep.core.world import JobRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One place of a job on a node, with what the books say of that node."""

    uid: str
    job: str
    slot: int
    node: str
    generation: int  # that made it
    devices: tuple[int, ...]
    is_leaving: bool  # told to go
    is_lost: bool  # its agent is gone
    has_answered: bool  # its agent did, once
    dead_at: float | None  # since then nothing of it runs any more
    grace_s: float
    service: Service  # of its node
    since: float | None  # when that changed
    teardown_s: float  # of its node

    @property
    def is_out(self) -> bool:
        """Whether it is known that its agent answers nobody any more."""
        return self.is_lost or self.service == "down"

    @property
    def cut_off_since(self) -> float | None:
        return self.since if self.service == "cut_off" else None

    def __str__(self) -> str:
        return f"{self.uid} on {self.node}"


_SELECT = (
    "SELECT uid, job, slot, node, generation, pods.devices, leaving AS is_leaving, lost AS is_lost, "
    "ready AS has_answered, dead_at, grace_s, service, since, teardown_s "
    "FROM pods JOIN nodes ON nodes.name = pods.node"
)


def _select(db: Db, where: str, *values: object) -> list[Pod]:
    return [_pod(row) for row in db.execute(f"{_SELECT} WHERE {where} ORDER BY slot", values)]


def _pod(row: Any) -> Pod:
    flags = {key: bool(row[key]) for key in ("is_leaving", "is_lost", "has_answered")}
    return Pod(**{**row, **flags, "devices": tuple(json.loads(row["devices"]))})


def everybody(db: Db) -> list[Pod]:
    return _select(db, "true")


def uids(db: Db) -> frozenset[str]:
    """Of all of them, also where their node is none that we know."""
    return frozenset(row["uid"] for row in db.execute("SELECT uid FROM pods"))


def of_job(db: Db, job_id: str) -> list[Pod]:
    """Those that count as the job's; the ones on their way out do not."""
    return _select(db, "job = ? AND NOT leaving", job_id)


def leaving(db: Db, job_id: str) -> list[Pod]:
    return _select(db, "job = ? AND leaving", job_id)


def on_node(db: Db, node: str) -> list[Pod]:
    """The ones on their way out included."""
    return _select(db, "node = ?", node)


def named(db: Db, uid: str) -> Pod | None:
    return next(iter(_select(db, "uid = ?", uid)), None)


def in_place(db: Db, ref: JobRef) -> list[Pod]:
    """Those of the job, where these are its books."""
    books.known(db, ref)
    return of_job(db, ref.id)


def enter(
    db: Db, uid: str, *, job: str, slot: int, node: str, generation: int, devices: tuple[int, ...]
) -> None:
    db.execute(
        "INSERT INTO pods (uid, job, slot, node, generation, devices) VALUES (?, ?, ?, ?, ?, ?)",
        (uid, job, slot, node, generation, json.dumps(devices)),
    )


def let_go(db: Db, uid: str, *, grace_s: float = 0.0) -> None:
    db.execute("UPDATE pods SET leaving = 1, grace_s = ? WHERE uid = ?", (grace_s, uid))


def lost(db: Db, uid: str) -> None:
    db.execute("UPDATE pods SET lost = 1 WHERE uid = ?", (uid,))


def remove(db: Db, uid: str) -> None:
    db.execute("DELETE FROM pods WHERE uid = ?", (uid,))
    db.execute("DELETE FROM checked WHERE uid = ?", (uid,))


MADE_IN = re.compile(r".*-g([0-9]+)-([0-9a-f]+)")


def gave(db: Db, uid: str, job_id: str | None) -> bool:
    """Whether the generation of this pod came from these books."""
    made = MADE_IN.fullmatch(uid)
    if made is None or job_id is None or made[2] != identity.identity(db):
        return False
    row = db.execute("SELECT newest FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return row is not None and int(made[1]) <= row["newest"]
