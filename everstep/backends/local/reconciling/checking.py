"""The environment checks of pods before their start: asked of their agents, written in the books.

Once per pod and generation, whoever asks and however often; a pod that passed is not looked at again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping

from everstep.agent import wire
from everstep.agent_client import checks
from everstep.backends.local.cluster import LocalCluster
from everstep.backends.local.database import books, nodes, pods
from everstep.backends.local.database.pods import Pod
from everstep.backends.local.database.store import Db
from everstep.backends.local.settings import HOST, LocalSettings
from everstep.core.facts import Fact
from everstep.core.world import PrecheckOrder, PrecheckState

LOG = logging.getLogger(__name__)

HOSTS = ("localhost", HOST)
"""Where all pods of this cluster are found."""
AGAIN_S = 0.2
"""So long after an answer that is not all of it the agents are asked again."""


async def ensure(cluster: LocalCluster, order: PrecheckOrder) -> PrecheckState:
    """Ask the agents that did not say it yet, all at once."""

    async def ask(pod: Pod) -> list[wire.CheckSeen] | None:
        return await checks.ask(
            cluster.agents,
            pod.uid,
            generation=order.generation,
            hosts=HOSTS,
            accelerator=_kind(order, cluster.settings),
            devices=len(pod.devices),
            thresholds=cluster.settings.thresholds,
        )

    open_pods = await cluster.store.run(lambda db: _open_pods(db, order))
    answers = await asyncio.gather(*(ask(pod) for pod in open_pods))
    now = cluster.now()

    def note(db: Db) -> PrecheckState:
        books.owned(db, order.job, order.generation)
        for pod, measured in zip(open_pods, answers, strict=True):
            if measured is not None:
                _write(db, pod, order.generation, measured, now)
        return _state(db, order)

    return await cluster.store.run(note)


def _pods(db: Db, order: PrecheckOrder) -> Mapping[int, Pod]:
    return {pod.slot: pod for pod in pods.of_job(db, order.job.id)}


def _open_pods(db: Db, order: PrecheckOrder) -> list[Pod]:
    """Those of the order whose agents can be asked, and have to be."""
    books.owned(db, order.job, order.generation)
    own = _pods(db, order)
    return [
        pod
        for slot in sorted(order.slots)
        if (pod := own.get(slot)) is not None
        and pod.has_answered
        and not pod.is_lost
        and _found(db, pod, order.generation) is None
    ]


def _kind(order: PrecheckOrder, settings: LocalSettings) -> str:
    """What has to be there: what the document names, else what the machine has."""
    return settings.accelerator if order.accelerator == "simulated" else order.accelerator


# -- The books ----------------------------------------------------------------------------------


def _found(db: Db, pod: Pod, generation: int) -> tuple[Fact, ...] | None:
    """What was found in this pod, failures and notes; None if it has to be asked."""
    rows = db.execute("SELECT * FROM checked WHERE uid = ?", (pod.uid,)).fetchall()
    answers = {
        row["generation"]: tuple(books.from_text(text) for text in json.loads(row["failures"]))
        for row in rows
    }
    if generation in answers:
        return answers[generation]
    return next((facts for facts in answers.values() if all(map(checks.is_note, facts))), None)


def _write(db: Db, pod: Pod, generation: int, measured: list[wire.CheckSeen], now: float) -> None:
    found = checks.findings(pod, generation, measured, now=now)
    facts = {fact.kind: fact for fact in (*found, *_rehearsed(db, pod, generation, now))}
    for fact in facts.values():
        LOG.warning("%s%s", "" if not checks.is_note(fact) else "only noted: ", fact.message)
    texts = json.dumps([books.to_text(fact) for fact in facts.values()])
    db.execute("INSERT OR IGNORE INTO checked VALUES (?, ?, ?)", (pod.uid, generation, texts))


def _rehearsed(db: Db, pod: Pod, generation: int, now: float) -> Iterable[Fact]:
    """Failures that somebody asked for."""
    for name, hardware in nodes.every(db)[pod.node].prechecks.items():
        message, details = f"the check of {name} failed on {pod.node}", {"hardware": hardware}
        yield checks.finding(pod, generation, name, at=now, message=message, details=details)


def _state(db: Db, order: PrecheckOrder) -> PrecheckState:
    own = _pods(db, order)
    found = [
        None if slot not in own else _found(db, own[slot], order.generation)
        for slot in sorted(order.slots)
    ]
    facts = [fact for one in found for fact in one or ()]
    return PrecheckState(
        done=all(one is not None for one in found),
        failures=tuple(fact for fact in facts if not checks.is_note(fact)),
        notes=tuple(fact.message for fact in facts if checks.is_note(fact)),
    )
