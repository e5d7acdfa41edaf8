"""What has to be done for pods, whoever decided it: agents started, ended, their ends noticed.

Everything here may be done by any worker, and again after one was killed in the middle: the books say
what is wanted, locks and marks say what is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.agent import wire
from everstep.backends import environment
from everstep.backends.local import books, endings, liveness, logs, placing
from everstep.backends.local.agents import (
    Agents,
    Folder,
    NoAnswer,
    Refused,
    kill_agent,
    spawn,
    tidy,
)
from everstep.backends.local.liveness import Life
from everstep.backends.local.placing import Moment
from everstep.backends.local.settings import LocalSettings
from everstep.backends.local.store import Db, Store
from everstep.core.errors import BackendUnavailable
from everstep.core.facts import Fact

LOG = logging.getLogger(__name__)

SPAWN_AGAIN_S = 10.0
"""An agent that was started and is not there after this time is started once more."""
PROOF_S = 0.02
QUIT_S = 1.0
CLEARING_LOOK_S = 0.5

EVERYBODY = "SELECT pods.*, service, teardown_s FROM pods JOIN nodes ON nodes.name = pods.node"


@dataclass(slots=True, kw_only=True)
class Care:
    """The hands of one worker on the pods of the machine."""

    settings: LocalSettings
    store: Store
    agents: Agents
    clock: Callable[[], float]
    ring: Callable[[str], None]  # something about this job is new
    spawned: dict[str, float] = field(default_factory=dict)
    ending: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def for_all(self) -> None:
        """See to every pod of the machine."""
        rows = await self.store.run(_everybody)
        for row in rows:
            self._for_one(row)
        known = {row["uid"] for row in rows}
        for uid in [uid for uid in self.agents.known if uid not in known]:
            self.agents.forget(uid)

    def _for_one(self, row: Any) -> None:
        uid = row["uid"]
        if row["leaving"]:
            if uid not in self.ending or self.ending[uid].done():
                self.ending[uid] = asyncio.create_task(self._let_go(row), name=f"end {uid}")
            return
        if row["lost"] or row["service"] == "down":
            return
        watched = self.agents.watch(uid, has_answered=bool(row["ready"]))
        if watched.state is None and not row["ready"] and row["service"] == "ready":
            self._start(row)

    def _start(self, row: Any) -> None:
        uid, now = row["uid"], self.clock()
        if (
            now - self.spawned.get(uid, 0.0) < SPAWN_AGAIN_S
            or self.agents.folder(uid).life() is Life.ALIVE
        ):
            return
        try:
            spawn(
                self.agents.folder(uid),
                self.settings.agent,
                job=row["job"],
                slot=row["slot"],
                node=row["node"],
                uid=uid,
                orphan_s=self.settings.orphan_s,
                environ=environment.passed(self.settings.environ, environment.FOR_AGENTS),
            )
        except OSError as error:  # tried again soon; the other pods are looked after meanwhile
            LOG.warning("the agent of %s cannot be started now: %s", uid, error)
            return
        self.spawned[uid] = now

    # -- ending ----------------------------------------------------------------------------------

    async def _let_go(self, row: Any) -> None:
        """Until nothing of the pod runs any more, and its place is free."""
        try:
            await self._end(row)
        except (OSError, BackendUnavailable) as error:  # begun again soon
            LOG.warning("pod %s cannot be ended now: %s", row["uid"], error)

    async def _end(self, row: Any) -> None:
        uid = row["uid"]
        if row["service"] == "cut_off":
            return  # out of reach: what is not proven is not done
        await self._end_agent(uid, grace_s=row["grace_s"])
        path = self.agents.folder(uid).path
        while liveness.sweep(path) is not Life.GONE:  # noqa: ASYNC110  # the kernel rings no bell for the end of a stranger
            await asyncio.sleep(PROOF_S)
        tidy(self.agents.folder(uid))
        await self.store.run(lambda db: self._dead(db, row))
        self.ring(row["job"])
        # Looked at now and then: the node may be lost meanwhile, which nobody tells us.
        while (left_s := await self.store.run(lambda db: self._to_clear_s(db, uid))) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left_s, CLEARING_LOOK_S))
        await self.store.run(lambda db: self._released(db, uid))
        self.agents.forget(uid)
        self.ring("")

    async def _end_agent(self, uid: str, *, grace_s: float) -> None:
        folder = self.agents.folder(uid)
        if folder.life() is not Life.GONE:
            try:
                body = {"grace_s": grace_s}
                await folder.ask("POST", wire.QUIT, body, within_s=grace_s + QUIT_S)
            except (NoAnswer, Refused):
                kill_agent(folder)
        liveness.shut(folder.path)
        ends_at = self.clock() + grace_s + QUIT_S
        while folder.life() is not Life.GONE:
            if self.clock() > ends_at:
                kill_agent(folder)
            await asyncio.sleep(PROOF_S)

    def _dead(self, db: Db, row: Any) -> None:
        """Its devices are free from now on, though its place may not be cleared yet."""
        watched, now = self.agents.known.get(row["uid"]), self.clock()
        endings.note(db, row["job"], watched, now=now, has_ended=True)
        db.execute(
            "UPDATE pods SET dead_at = COALESCE(dead_at, ?) WHERE uid = ?", (now, row["uid"])
        )
        placing.serve_queue(Moment(db=db, settings=self.settings, now=now))

    def _to_clear_s(self, db: Db, uid: str) -> float:
        """How long its place is still being cleared; a node out of service has nothing to clear."""
        row = db.execute(f"{EVERYBODY} WHERE uid = ?", (uid,)).fetchone()
        if row is None or row["service"] == "down":
            return 0.0
        return float(row["dead_at"] + row["teardown_s"] - self.clock())

    def _released(self, db: Db, uid: str) -> None:
        db.execute("DELETE FROM pods WHERE uid = ?", (uid,))
        db.execute("DELETE FROM checked WHERE uid = ?", (uid,))
        placing.serve_queue(Moment(db=db, settings=self.settings, now=self.clock()))

    async def end_strays(self) -> None:
        """Agents of pods that the books do not know: begun by somebody who was killed, or too late.

        One of a generation that these books never gave tells that they are an older copy, or others:
        it may belong to a healthy job.
        """
        # First who is here, then who is known: in between a pod may be entered and its agent begun.
        here = await asyncio.to_thread(_living, self.settings.agents)
        known = {row["uid"] for row in await self.store.run(_everybody)}
        for uid in await self.store.run(lambda db: self._given(db, here - known)):
            liveness.shut(self.agents.folder(uid).path)
            kill_agent(self.agents.folder(uid))
            liveness.sweep(self.agents.folder(uid).path)
            tidy(self.agents.folder(uid))

    def _given(self, db: Db, uids: set[str]) -> list[str]:
        return [uid for uid in sorted(uids) if books.gave(db, uid, logs.job_of(self._path(uid)))]

    def _path(self, uid: str) -> Path:
        return self.agents.folder(uid).path

    # -- seeing ----------------------------------------------------------------------------------

    def take_in(self, db: Db, job_id: str) -> None:
        """Write down what the agents of this job told, and which of them are gone."""
        for row in books.pods_of(db, job_id):
            watched = self.agents.known.get(row["uid"])
            if watched is None:
                continue
            endings.note(db, job_id, watched, now=self.clock(), has_ended=watched.is_gone)
            if watched.state is not None:
                self._told(db, row, watched.state)
            if watched.is_gone and not row["lost"]:
                self._lost(db, row, watched.state)

    def _told(self, db: Db, row: Any, state: wire.State) -> None:
        if not row["ready"]:
            db.execute("UPDATE pods SET ready = 1 WHERE uid = ?", (row["uid"],))
        for seen in state["facts"]:
            if _is_news(seen):
                books.tell(db, row["job"], _fact(row, state, seen))

    def _lost(self, db: Db, row: Any, state: wire.State | None) -> None:
        db.execute("UPDATE pods SET lost = 1 WHERE uid = ?", (row["uid"],))
        run = state["run"] if state is not None else None
        # Of one that ended while nobody served we know no run; that it is gone is news all the same.
        unseen = books.job(db, row["job"])["newest"] if state is None else row["generation"]
        generation = run["generation"] if run is not None else unseen
        gone = Fact(
            id=f"{row['uid']}/gone",
            kind="agent.gone",
            at=self.clock(),
            generation=generation,
            node=row["node"],
            slot=row["slot"],
            message=f"the container of {row['job']}/{row['slot']} is gone",
        )
        books.tell(db, row["job"], gone)

    async def close(self) -> None:
        for task in self.ending.values():
            task.cancel()
        await asyncio.gather(*self.ending.values(), return_exceptions=True)


def _is_news(seen: wire.FactSeen) -> bool:
    """An end that was well, or only follows from another one, is shown in the pod and is no fact."""
    details = seen["details"]
    is_well = seen["kind"] == "process.exit" and details.get("code") == 0
    return not is_well and not details.get("consequence")


def _everybody(db: Db) -> list[Any]:
    return db.execute(EVERYBODY).fetchall()


def _living(agents: Path) -> set[str]:
    folders = agents.iterdir() if agents.exists() else ()
    return {path.name for path in folders if Folder(path=path).life() is Life.ALIVE}


def _fact(row: Any, state: wire.State, seen: wire.FactSeen) -> Fact:
    code = seen["details"].get("code")
    return Fact(
        id=f"{row['uid']}/{state['boot']}/{seen['n']}",
        kind=seen["kind"],
        at=seen["at"],
        generation=seen["generation"],
        node=row["node"],
        slot=row["slot"],
        rank=seen["rank"],
        message=seen["message"],
        details={
            k: v for k, v in seen["details"].items() if isinstance(v, str | int | float | None)
        },
        code=None if code is None or seen["kind"].startswith("process.") else str(code),
    )
