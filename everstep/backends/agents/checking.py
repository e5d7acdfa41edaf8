"""Runs the environment checks of pods before their start and records what they found.

They run once per pod and generation, for all workers and calls. A pod that passed is not checked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from everstep.backends.agents.commands import prechecks
from everstep.backends.agents.job_record import JobRecord
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import AgentCluster, JobBooks, owned_record
from everstep.core.facts import Fact
from everstep.core.world import PrecheckOrder, PrecheckState
from everstep.protocol import wire

LOG = logging.getLogger(__name__)

AGAIN_S = 0.2
"""Time after an incomplete answer until the agents are polled again."""

Findings = Sequence[Fact]
"""What the checks of one pod found, failures and notes."""


async def ensure_prechecked(cluster: AgentCluster, order: PrecheckOrder) -> PrecheckState:
    """Run the checks that are not recorded yet, on all agents at once."""
    to_check = await cluster.books.change(order.job.id, lambda books: _to_check(books, order))
    hosts = cluster.pods.check_hosts(to_check)

    async def request(pod: Pod) -> list[wire.CheckSeen] | None:
        return await prechecks.request(
            cluster.agents,
            pod.uid,
            generation=order.generation,
            hosts=hosts,
            accelerator=cluster.pods.accelerator(order.accelerator),
            devices=len(pod.devices),
            thresholds=cluster.settings.thresholds,
        )

    answers = await asyncio.gather(*(request(pod) for pod in to_check))
    now = cluster.now()

    def note(books: JobBooks) -> PrecheckState:
        owned_record(books, order.job, order.generation)
        measured = {
            pod: answer for pod, answer in zip(to_check, answers, strict=True) if answer is not None
        }
        if measured:
            _add(books, order.generation, measured, now)
        return _state(books, order)

    return await cluster.books.change(order.job.id, note)


def _to_check(books: JobBooks, order: PrecheckOrder) -> list[Pod]:
    """Pods of the order that can be reached and whose checks are not recorded."""
    record = owned_record(books, order.job, order.generation)
    return [
        pod
        for pod in _pods(books, order).values()
        if pod.has_answered and not pod.is_lost and _findings(record, pod, order.generation) is None
    ]


def _pods(books: JobBooks, order: PrecheckOrder) -> dict[int, Pod]:
    """The pods to check: those of the slots, and the spares with these numbers."""
    by_slot = {pod.slot: pod for pod in (*books.standbys(), *books.pods())}
    return {slot: by_slot[slot] for slot in sorted(order.slots) if slot in by_slot}


def _findings(record: JobRecord, pod: Pod, generation: int) -> Findings | None:
    """The recorded findings of this pod; None if its checks have to run."""
    answers = record.checks.get(pod.uid, {})
    if generation in answers:
        return answers[generation]
    return next((facts for facts in answers.values() if all(map(prechecks.is_note, facts))), None)


def _add(
    books: JobBooks,
    generation: int,
    measured: Mapping[Pod, list[wire.CheckSeen]],
    now: float,
) -> None:
    """Record what the agents measured. What was recorded of a pod in this generation stays."""
    uids = {pod.uid for pod in (*books.pods(), *books.standbys(), *books.leaving())}
    recorded = {uid: dict(findings) for uid, findings in books.record.checks.items() if uid in uids}
    for pod, answer in measured.items():
        findings = prechecks.findings(pod, generation, answer, now=now)
        facts = {fact.kind: fact for fact in (*findings, *_rehearsed(books, pod, generation, now))}
        for fact in facts.values():
            prefix = "" if not prechecks.is_note(fact) else "only noted: "
            LOG.warning("%s%s", prefix, fact.message, extra={"job": pod.job})
        recorded.setdefault(pod.uid, {}).setdefault(generation, tuple(facts.values()))
    books.record = replace(books.record, checks=recorded)


def _rehearsed(books: JobBooks, pod: Pod, generation: int, now: float) -> Iterable[Fact]:
    """Failures that an operator rehearses."""
    for name, hardware in books.rehearsed_checks(pod).items():
        message, details = f"the check of {name} failed on {pod.node}", {"hardware": hardware}
        yield prechecks.finding(pod, generation, name, at=now, message=message, details=details)


def _state(books: JobBooks, order: PrecheckOrder) -> PrecheckState:
    pods = _pods(books, order)
    findings = [
        None if slot not in pods else _findings(books.record, pods[slot], order.generation)
        for slot in sorted(order.slots)
    ]
    facts = [fact for one in findings for fact in one or ()]
    return PrecheckState(
        done=all(one is not None for one in findings),
        failures=tuple(fact for fact in facts if not prechecks.is_note(fact)),
        notes=tuple(fact.message for fact in facts if prechecks.is_note(fact)),
    )
