"""Observe a job of agents: store what they reported, then return its pods and the facts since a cursor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from everstep.backends.agents import endings, job_record
from everstep.backends.agents.client import agent_views
from everstep.backends.agents.client.watch import WatchedAgent
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import AgentCluster, JobBooks, record_of
from everstep.core.facts import Fact
from everstep.core.world import Checkpoint, JobRef, Observation
from everstep.protocol import wire


async def observe(cluster: AgentCluster, job: JobRef, cursor: str) -> Observation:
    """Everything about the job now. Agents may drop their facts once those are in the books."""

    def store_and_read(
        books: JobBooks,
    ) -> tuple[int, list[Pod], tuple[Fact, ...], str, dict[str, wire.AgentState]]:
        newest = record_of(books, job).newest
        states = _store_reports(cluster, books)
        if _newest_checkpoint(cluster, books.pods()) is not None:
            books.record = job_record.with_saved(books.record, job)
        facts, after = books.facts_after(cursor)
        return newest, list(books.pods()), facts, after, states

    newest, pods, facts, after, states = await cluster.books.change(job.id, store_and_read)
    for uid, state in states.items():
        cluster.agents.note_stored(uid, state)
    agents = cluster.agents.by_uid
    return Observation(
        now=cluster.now(),
        cursor=after,
        pods=tuple(agent_views.pod_view(pod, agents.get(pod.uid)) for pod in pods),
        checkpoint=_newest_checkpoint(cluster, pods),
        facts=facts,
        generation=newest,
    )


def _newest_checkpoint(cluster: AgentCluster, pods: Sequence[Pod]) -> Checkpoint | None:
    agents = cluster.agents.by_uid
    return agent_views.newest_checkpoint([agents[pod.uid] for pod in pods if pod.uid in agents])


def _store_reports(cluster: AgentCluster, books: JobBooks) -> dict[str, wire.AgentState]:
    """Store what the job's agents reported, and which of them are gone. Return the states by uid."""
    states = {}
    for pod in books.pods():
        agent = cluster.agents.by_uid.get(pod.uid)
        if agent is None:
            continue
        is_newly_gone = agent.is_gone and not pod.is_lost
        note_endings(
            cluster, books, agent, ended_since=agent.answered_at if is_newly_gone else None
        )
        if agent.state is not None:
            if not pod.has_answered:
                books.set_answered(pod.uid)
            for fact in agent_views.facts(pod, agent.state):
                books.add_fact(fact)
            states[pod.uid] = agent.state
        if agent.is_gone and not pod.is_lost:
            _note_lost(cluster, books, pod, agent.state)
    _note_good_end(cluster, books)
    return states


def _note_good_end(cluster: AgentCluster, books: JobBooks) -> None:
    """Record that all ranks have ended well: the agents of the next phase's pods cannot report it."""
    started = books.record.started
    agents = [cluster.agents.by_uid.get(pod.uid) for pod in books.pods()]
    if agents and all(endings.are_well(agent, started) for agent in agents):
        books.record = job_record.with_good_end(books.record)


def note_endings(
    cluster: AgentCluster,
    books: JobBooks,
    agent: WatchedAgent | None,
    *,
    ended_since: float | None = None,
) -> None:
    """Record which ranks of this agent ended in the middle of something; see `endings.with_ends_of`."""
    books.record = endings.with_ends_of(
        books.record, agent, now=cluster.now(), wall_now=time.time(), ended_since=ended_since
    )


def _note_lost(
    cluster: AgentCluster, books: JobBooks, pod: Pod, state: wire.AgentState | None
) -> None:
    books.set_lost(pod.uid)
    generation = run_generation(state, newest=books.record.newest, created_in=pod.generation)
    books.add_fact(agent_views.agent_gone(pod, at=cluster.now(), generation=generation))


def run_generation(state: wire.AgentState | None, *, newest: int, created_in: int) -> int:
    """The generation of the ranks in a pod that was created in `created_in`.

    If its agent ended unseen, its run is unknown: `newest`, so that its end is not taken for an old one.
    """
    if state is None:
        return newest
    run = state["run"]
    return created_in if run is None else run["generation"]


async def check(cluster: AgentCluster, job: JobRef) -> tuple[Fact, ...]:
    """Poll all agents of the job now; return the faults that are present."""

    def read(books: JobBooks) -> list[Pod]:
        record_of(books, job)
        return list(books.pods())

    pods = await cluster.books.change(job.id, read)
    await asyncio.gather(*(cluster.agents.poll(pod.uid) for pod in pods if not pod.is_lost))
    return await cluster.books.change(job.id, lambda books: books.present_faults())
