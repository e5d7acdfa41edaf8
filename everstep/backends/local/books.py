"""Reading and writing the books: facts, nodes, devices, jobs. Each function is part of a transaction."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from everstep.agent import hardware
from everstep.backends.local.settings import LocalSettings
from everstep.backends.local.store import Db
from everstep.core.errors import FolderTaken, OtherBooks, StaleGeneration
from everstep.core.facts import Fact
from everstep.core.world import DeviceView, JobRef, Leftover, NodeView

# -- Facts --------------------------------------------------------------------------------------


def to_text(fact: Fact) -> str:
    return json.dumps(asdict(fact))


def from_text(text: str) -> Fact:
    return Fact(**json.loads(text))


def tell(db: Db, job: str, fact: Fact) -> None:
    """The job is told, once for each identity, whoever tells it."""
    db.execute(
        "INSERT OR IGNORE INTO facts (job, id, fact) VALUES (?, ?, ?)",
        (job, fact.id, to_text(fact)),
    )


def facts_after(db: Db, job: str, cursor: int) -> tuple[tuple[Fact, ...], int]:
    """What the job was told after the cursor, and the cursor after that."""
    rows = db.execute(
        "SELECT n, fact FROM facts WHERE job = ? AND n > ? ORDER BY n", (job, cursor)
    ).fetchall()
    return tuple(from_text(row["fact"]) for row in rows), (rows[-1]["n"] if rows else cursor)


def number(db: Db, name: str) -> int:
    """A number never given before, for identities."""
    db.execute("INSERT INTO settings VALUES (?, '0') ON CONFLICT DO NOTHING", (f"number/{name}",))
    row = db.execute(
        "UPDATE settings SET value = value + 1 WHERE name = ? RETURNING value", (f"number/{name}",)
    ).fetchone()
    return int(row["value"])


def cluster(db: Db) -> str:
    """What tells the pods of this state directory from those of all others on the machine."""
    row = db.execute("SELECT value FROM settings WHERE name = 'cluster'").fetchone()
    if row is not None:
        return str(row["value"])
    fresh = secrets.token_hex(3)
    db.execute("INSERT INTO settings VALUES ('cluster', ?)", (fresh,))
    return fresh


# -- Jobs ---------------------------------------------------------------------------------------


def job(db: Db, job_id: str) -> Any:
    """The job's row, made if there is none."""
    db.execute("INSERT INTO jobs (id) VALUES (?) ON CONFLICT DO NOTHING", (job_id,))
    return db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()


def known(db: Db, ref: JobRef, generation: int = 0) -> Any:
    """The job's row, if these are its books and they know it up to this generation."""
    if ref.books not in ("", cluster(db)):
        raise OtherBooks.strange(ref.id)
    row = job(db, ref.id)
    if generation > row["newest"]:
        raise OtherBooks.older(ref.id, known=row["newest"], own=generation)
    return row


def is_known(db: Db, ref: JobRef, generation: int) -> bool:
    """Whether these books know all of the job."""
    try:
        return known(db, ref, generation) is not None and not is_half_known(db, ref.id)
    except OtherBooks:
        return False


def owned(db: Db, ref: JobRef, generation: int) -> Any:
    """The job, if the order's generation still owns it."""
    row = known(db, ref, generation)
    if generation < row["newest"]:
        raise StaleGeneration(ref.id, given=generation, current=row["newest"])
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A folder of a job, all that it is called on this machine, and the newest generations there."""

    path: str
    field: str
    names: tuple[str, ...]
    generation: int
    held: int = 0  # the newest one of the job itself, if it has not ended


def claim(db: Db, job_id: str, found: Iterable[Found]) -> None:
    """The folders are the job's until it is gone, whatever they are called."""
    for one in found:
        for name in one.names:
            db.execute("INSERT INTO claims VALUES (?, ?) ON CONFLICT DO NOTHING", (name, job_id))
            row = db.execute("SELECT job FROM claims WHERE folder = ?", (name,)).fetchone()
            if row["job"] != job_id:
                raise FolderTaken(one.field, one.path, row["job"])


def folders(db: Db, job_id: str, *more: str) -> list[str]:
    """All that the job ever wrote to, these among them from now on."""
    for folder in more:
        db.execute("INSERT INTO folders VALUES (?, ?) ON CONFLICT DO NOTHING", (job_id, folder))
    rows = db.execute("SELECT folder FROM folders WHERE job = ? ORDER BY folder", (job_id,))
    return [row["folder"] for row in rows]


def generation(
    db: Db, ref: JobRef, key: str, *, above: int, found: Sequence[Found], server: str
) -> int:
    """The generation of this key; a new one is higher than any known, in the books or in a fence."""
    newest = int(known(db, ref, above)["newest"])
    claim(db, ref.id, found)
    given = db.execute(
        "SELECT generation FROM generations WHERE job = ? AND run = ? AND key = ?",
        (ref.id, ref.run, key),
    ).fetchone()
    if given is not None and given["generation"] > above:
        return int(given["generation"])
    if any(one.held > newest for one in found):
        knows_half(db, ref.id)
    new = max([newest, *(one.generation for one in found)]) + 1
    db.execute(
        "INSERT OR REPLACE INTO generations VALUES (?, ?, ?, ?)", (ref.id, ref.run, key, new)
    )
    db.execute("UPDATE jobs SET newest = ?, newest_run = ? WHERE id = ?", (new, ref.run, ref.id))
    db.execute("INSERT OR REPLACE INTO servers VALUES (?, ?)", (ref.id, server))
    db.execute("DELETE FROM queue WHERE job = ?", (ref.id,))  # of an older generation
    return new


def knows_half(db: Db, job_id: str) -> None:
    """Pods of the job may run that are not in these books; until a fence held by its time alone."""
    db.execute("INSERT INTO half_known VALUES (?) ON CONFLICT DO NOTHING", (job_id,))


def is_half_known(db: Db, job_id: str) -> bool:
    row = db.execute("SELECT job FROM half_known WHERE job = ?", (job_id,)).fetchone()
    return row is not None


def adopt(db: Db, ref: JobRef, generation: int) -> None:
    """From now on the job is in these books, and at this generation at least."""
    job(db, ref.id)
    knows_half(db, ref.id)
    db.execute(
        "UPDATE jobs SET newest = MAX(newest, ?), newest_run = ? WHERE id = ?",
        (generation, ref.run, ref.id),
    )


def leftovers(db: Db) -> tuple[Leftover, ...]:
    rows = db.execute(
        "SELECT id, newest_run, server FROM jobs LEFT JOIN servers ON servers.job = jobs.id WHERE id IN"
        " (SELECT job FROM pods UNION SELECT job FROM queue UNION SELECT job FROM claims) ORDER BY id"
    ).fetchall()
    return tuple(
        Leftover(job=JobRef(id=row["id"], run=row["newest_run"] or ""), server=row["server"] or "")
        for row in rows
    )


# -- Nodes --------------------------------------------------------------------------------------


def set_up(db: Db, settings: LocalSettings) -> None:
    """The nodes that are wanted and not there yet. None is taken away: somebody may live on it."""
    for position in range(settings.nodes):
        add_node(db, f"n{position}", settings.devices)
    if settings.accelerator in hardware.KINDS:  # no simulation: there are as many as were found
        db.execute("UPDATE nodes SET devices = ?", (settings.devices,))


def add_node(db: Db, name: str, devices: int) -> None:
    db.execute(
        "INSERT INTO nodes (name, position, devices) SELECT ?, COUNT(*), ? FROM nodes WHERE true "
        "ON CONFLICT DO NOTHING",
        (name, devices),
    )


def node(db: Db, name: str) -> Any:
    row = db.execute("SELECT * FROM nodes WHERE name = ?", (name,)).fetchone()
    if row is None:
        known = ", ".join(r["name"] for r in db.execute("SELECT name FROM nodes ORDER BY position"))
        raise ValueError(f"there is no node {name!r}; try one of {known}")
    return row


def node_views(db: Db, settings: LocalSettings, now: float) -> tuple[NodeView, ...]:
    pods = db.execute("SELECT * FROM pods").fetchall()
    rows = db.execute("SELECT * FROM nodes ORDER BY position").fetchall()
    return tuple(_node_view(db, row, pods, settings, now) for row in rows)


def _node_view(
    db: Db, row: Any, pods: Iterable[Any], settings: LocalSettings, now: float
) -> NodeView:
    here = [pod for pod in pods if pod["node"] == row["name"]]
    alive = [pod for pod in here if pod["dead_at"] is None]  # devices go with the processes
    holders = {index: pod["job"] for pod in alive for index in json.loads(pod["devices"])}
    codes = codes_on(db, row["name"])
    told = row["condition"] or row["maintenance"]
    is_open = row["service"] == "ready" and row["maintenance"] is None
    without_devices = sum(pod["devices"] == "[]" for pod in alive)
    return NodeView(
        name=row["name"],
        ready=row["service"] == "ready",
        isolated=row["isolated"] is not None,
        reason=row["isolated"] or (from_text(told).message if told else ""),
        devices=tuple(
            DeviceView(
                index=index,
                health=_health(db, row, index, codes, now),
                codes=tuple(code for device, code in codes if device == index),
                job=holders.get(index),
            )
            for index in range(row["devices"])
        ),
        jobs=tuple(sorted({pod["job"] for pod in here})),
        accelerator=settings.accelerator if row["devices"] else "none",
        slots_free=max(0, settings.slots - without_devices) if is_open else 0,
    )


def codes_on(db: Db, node_name: str) -> dict[tuple[int, str], Fact]:
    rows = db.execute("SELECT * FROM device_faults WHERE node = ?", (node_name,)).fetchall()
    return {(row["device"], row["code"]): from_text(row["fact"]) for row in rows}


def _health(
    db: Db, row: Any, index: int, codes: dict[tuple[int, str], Fact], now: float
) -> Literal["ok", "healing", "faulty", "isolated"]:
    heals = db.execute(
        "SELECT ends_at FROM heals WHERE node = ? AND device = ?", (row["name"], index)
    ).fetchone()
    if heals is not None and now < heals["ends_at"]:
        return "healing"
    mine = [fact for (device, _), fact in codes.items() if device == index]
    if any(fact.details.get("severity") != "warning" for fact in mine):
        return "faulty"
    return "ok" if row["maintenance"] is None else "isolated"


# -- Pods ---------------------------------------------------------------------------------------


def pods_of(db: Db, job_id: str) -> list[Any]:
    """Those that count as the job's; the ones on their way out do not."""
    return db.execute(
        "SELECT * FROM pods WHERE job = ? AND NOT leaving ORDER BY slot", (job_id,)
    ).fetchall()


def pods_in_place(db: Db, ref: JobRef) -> list[Any]:
    """The same, where these are the job's books."""
    known(db, ref)
    return pods_of(db, ref.id)


MADE_IN = re.compile(r".*-g([0-9]+)-([0-9a-f]+)")


def gave(db: Db, uid: str, job_id: str | None) -> bool:
    """Whether the generation of this pod came from these books."""
    made = MADE_IN.fullmatch(uid)
    if made is None or job_id is None or made[2] != cluster(db):
        return False
    row = db.execute("SELECT newest FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return row is not None and int(made[1]) <= row["newest"]


def leaving_of(db: Db, job_id: str) -> list[Any]:
    return db.execute(
        "SELECT * FROM pods WHERE job = ? AND leaving ORDER BY slot", (job_id,)
    ).fetchall()


def holder_of(db: Db, node_name: str, device: int) -> Any:
    """The pod that has this device, if any."""
    rows = db.execute("SELECT * FROM pods WHERE node = ? AND NOT leaving", (node_name,)).fetchall()
    return next((row for row in rows if device in json.loads(row["devices"])), None)


def tell_node(db: Db, node_name: str, fact: Fact) -> None:
    """Every job that has a pod on this node is told."""
    rows = db.execute("SELECT * FROM pods WHERE node = ? AND NOT leaving", (node_name,)).fetchall()
    for row in rows:
        tell(db, row["job"], replace(fact, slot=row["slot"]))


def present(db: Db, job_id: str) -> tuple[Fact, ...]:
    """The faults that are there now under this job, as they were told or would be."""
    found: dict[str, Fact] = {}
    for pod in pods_of(db, job_id):
        row = node(db, pod["node"])
        told = [from_text(text) for text in (row["condition"], row["maintenance"]) if text]
        held = json.loads(pod["devices"])
        told += [f for (device, _), f in codes_on(db, row["name"]).items() if device in held]
        found |= {fact.id: replace(fact, slot=pod["slot"]) for fact in told}
    unwritable = job(db, job_id)["unwritable"]
    if unwritable is not None:
        fact = from_text(unwritable)
        found[fact.id] = fact
    return tuple(sorted(found.values(), key=lambda fact: fact.at))
