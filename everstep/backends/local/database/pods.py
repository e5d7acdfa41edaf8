"""Pods as the books have them, as values. Each function is part of a transaction."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from everstep.backends.agents.pod import Pod
from everstep.backends.local.database import identity
from everstep.backends.local.database.store import Db


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPod(Pod):
    """A pod with what only this cluster has."""

    grace_s: float  # of its end
    teardown_s: float  # of its node


_SELECT = (
    "SELECT uid, job, slot, node, generation, pods.devices, leaving AS is_leaving, lost AS is_lost, "
    "ready AS has_answered, dead_at, grace_s, service, since, teardown_s "
    "FROM pods JOIN nodes ON nodes.name = pods.node"
)


def _select(db: Db, where: str, *values: object) -> list[LocalPod]:
    return [_pod(row) for row in db.execute(f"{_SELECT} WHERE {where} ORDER BY slot", values)]


def _pod(row: Any) -> LocalPod:
    flags = {key: bool(row[key]) for key in ("is_leaving", "is_lost", "has_answered")}
    return LocalPod(**{**row, **flags, "devices": tuple(json.loads(row["devices"]))})


def all_pods(db: Db) -> list[LocalPod]:
    return _select(db, "true")


def uids(db: Db) -> frozenset[str]:
    """The uids of all pods, also of those whose node is unknown."""
    return frozenset(row["uid"] for row in db.execute("SELECT uid FROM pods"))


def of_job(db: Db, job_id: str) -> list[LocalPod]:
    """The pods that count as the job's, without those that leave."""
    return _select(db, f"job = ? AND NOT leaving AND NOT {_STANDS_BY}", job_id)


_STANDS_BY = "uid IN (SELECT uid FROM standbys)"


def standing_by(db: Db, job_id: str) -> list[LocalPod]:
    """The pods that stand by to replace the pod of a slot."""
    return _select(db, f"job = ? AND {_STANDS_BY}", job_id)


def spares_of_others(db: Db, job_id: str) -> list[LocalPod]:
    """The spares of all other jobs, those on their way out included."""
    never_taken = f"({_STANDS_BY} OR leaving)"
    return _select(db, f"job != ? AND uid IN (SELECT uid FROM spares) AND {never_taken}", job_id)


def stand_by(db: Db, uid: str) -> None:
    """Count the pod as no slot's."""
    db.execute("INSERT INTO standbys VALUES (?)", (uid,))


def stand_by_as_spare(db: Db, uid: str, at: float) -> None:
    """Count the pod as no slot's, and note since when it is waited for."""
    stand_by(db, uid)
    db.execute("INSERT INTO spares (uid, ordered_at) VALUES (?, ?)", (uid, at))


def spare_ready(db: Db, uid: str, at: float) -> None:
    """Note when the agent of a spare pod answered first; of another pod nothing is noted. Repeatable."""
    db.execute("UPDATE spares SET ready_at = ? WHERE uid = ? AND ready_at IS NULL", (at, uid))


def stood_up_s(db: Db, uid: str) -> float | None:
    """How long a spare pod took until it was ready; None if it was not, or is none."""
    row = db.execute("SELECT ordered_at, ready_at FROM spares WHERE uid = ?", (uid,)).fetchone()
    return None if row is None or row["ready_at"] is None else row["ready_at"] - row["ordered_at"]


def stand_by_for(db: Db, uid: str, slot: int) -> None:
    """Let a pod that stands by do so for another slot."""
    db.execute("UPDATE pods SET slot = ? WHERE uid = ?", (slot, uid))


def take(db: Db, uid: str, slot: int, generation: int) -> None:
    """Count a pod that stood by as this slot's, made in this generation."""
    db.execute("DELETE FROM standbys WHERE uid = ?", (uid,))
    db.execute("UPDATE pods SET slot = ?, generation = ? WHERE uid = ?", (slot, generation, uid))


def leaving(db: Db, job_id: str) -> list[LocalPod]:
    return _select(db, "job = ? AND leaving", job_id)


def on_node(db: Db, node: str) -> list[LocalPod]:
    """The ones on their way out included."""
    return _select(db, "node = ?", node)


def of_jobs_on(db: Db, node: str) -> list[LocalPod]:
    """Those on the node that count as their job's, or did until they were ordered to end."""
    return _select(db, f"node = ? AND NOT {_STANDS_BY}", node)


def by_uid(db: Db, uid: str) -> LocalPod | None:
    return next(iter(_select(db, "uid = ?", uid)), None)


def enter(
    db: Db, uid: str, *, job: str, slot: int, node: str, generation: int, devices: tuple[int, ...]
) -> None:
    db.execute(
        "INSERT INTO pods (uid, job, slot, node, generation, devices) VALUES (?, ?, ?, ?, ?, ?)",
        (uid, job, slot, node, generation, json.dumps(devices)),
    )


def let_go(db: Db, uid: str, *, grace_s: float = 0.0) -> None:
    db.execute("DELETE FROM standbys WHERE uid = ?", (uid,))
    db.execute("UPDATE pods SET leaving = 1, grace_s = ? WHERE uid = ?", (grace_s, uid))


def answered(db: Db, uid: str) -> None:
    db.execute("UPDATE pods SET ready = 1 WHERE uid = ? AND NOT ready", (uid,))


def dead(db: Db, uid: str, at: float) -> None:
    """Nothing of it runs any more since then, or since an earlier moment that was noted."""
    db.execute("UPDATE pods SET dead_at = COALESCE(dead_at, ?) WHERE uid = ?", (at, uid))


def lost(db: Db, uid: str) -> None:
    db.execute("UPDATE pods SET lost = 1 WHERE uid = ?", (uid,))


def remove(db: Db, uid: str) -> None:
    for table in ("standbys", "spares", "pods"):
        db.execute(f"DELETE FROM {table} WHERE uid = ?", (uid,))


MADE_IN = re.compile(r".*-g([0-9]+)(?:s[0-9]+)?-([0-9a-f]+)")


def gave(db: Db, uid: str, job_id: str | None) -> bool:
    """Whether the generation of this pod came from these books."""
    made = MADE_IN.fullmatch(uid)
    if made is None or job_id is None or made[2] != identity.identity(db):
        return False
    row = db.execute("SELECT newest FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return row is not None and int(made[1]) <= row["newest"]
