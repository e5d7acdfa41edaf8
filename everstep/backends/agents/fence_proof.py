"""Write the fence of a generation through an agent, then prove that it holds, by `rules.fencing`.

`ensure_fenced` is called again and again, and each call goes as far as it can: look whether no older process
can run (then the fence holds once it is written), write the fence, record it in the books, prove for each pod
that nothing older runs there, or let the fence time pass. What is done is in the job's record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from everstep.backends.agents import endings, job_record, job_storage
from everstep.backends.agents.client.link import NoAnswer, Refused
from everstep.backends.agents.commands import ranks, storage
from everstep.backends.agents.job_record import JobRecord
from everstep.backends.agents.observing import note_endings
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import AgentCluster, JobBooks, owned_record
from everstep.backends.rules import fencing
from everstep.core.world import CheckpointListing, FenceOrder, FenceState
from everstep.protocol import wire


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFence:
    """Where and when the fence was written. Without a folder it is written nowhere, at no time."""

    at: float | None = None
    real: Collection[str] = ()
    listing: CheckpointListing | None = None


async def ensure_fenced(
    cluster: AgentCluster, order: FenceOrder
) -> tuple[FenceState, float | None]:
    """Return how far the fence is, and when it will hold without proof. The order's folders are absolute.

    Each transaction checks that the order's generation still owns the job: a worker may be slow in between.
    """
    owned = partial(owned_record, ref=order.job, generation=order.generation)
    record = await cluster.books.change(order.job.id, owned)
    state, holds_at = await _fenced(cluster, order, record)
    return replace(state, has_saved_before=job_record.has_saved_before(record, order)), holds_at


async def _fenced(
    cluster: AgentCluster, order: FenceOrder, record: JobRecord
) -> tuple[FenceState, float | None]:
    if record.fenced != order.generation:
        is_proven = await _is_proven_already(cluster, order)
        written = await _write(cluster, order, record, lists_checkpoints=is_proven)
        if isinstance(written, FenceState):
            return written, None
        await _note_written(cluster, order, written, is_proven=is_proven)
        if is_proven:
            return FenceState(done=True, listing=written.listing), None
        owned = partial(owned_record, ref=order.job, generation=order.generation)
        record = await cluster.books.change(order.job.id, owned)
    if record.fence_holds:
        return FenceState(done=True), None
    return await _prove(cluster, order, record)


async def _is_proven_already(cluster: AgentCluster, order: FenceOrder) -> bool:
    """Whether no older process can run, without a request to an agent."""
    pods, may_have_unknown_pods = await _job_pods(cluster, order)
    unproven = await _unproven(cluster, pods, order, sends_stop=False)
    return not may_have_unknown_pods and not unproven


async def _write(
    cluster: AgentCluster, order: FenceOrder, record: JobRecord, *, lists_checkpoints: bool
) -> WrittenFence | FenceState:
    """Write the fence through the agent of the lowest slot. A `FenceState`: why it is not written.

    `lists_checkpoints`: the same request reads what is saved, once the fence is written.
    """
    if not fencing.has_folder(order):
        return WrittenFence()
    if record.unwritable is not None:
        return FenceState.refused(record.unwritable.message)
    answer = await _request_write(cluster, order, lists_checkpoints=lists_checkpoints)
    if isinstance(answer, FenceState):
        return answer
    if answer["no_folder"]:
        return FenceState.refused(answer["no_folder"], no_folder=True)
    if newer := answer["newer"]:
        await _note_newer(cluster, order, newer, is_held=answer["is_held"])
        return fencing.newer_on_storage(newer)
    listing = storage.listing(answer)
    return WrittenFence(at=cluster.now(), real=answer["real"].values(), listing=listing)


async def _request_write(
    cluster: AgentCluster, order: FenceOrder, *, lists_checkpoints: bool
) -> wire.FenceAnswer | FenceState:
    """The agent's answer. A `FenceState`: it is absent, did not answer, or has no storage."""

    def prepare(books: JobBooks) -> tuple[JobRecord, Pod | None, wire.CheckpointsQuestion | None]:
        """Record the folders, and the ends of writers, before anything is written."""
        writer = next((pod for pod in books.pods() if pod.slot == order.lowest_slot), None)
        question = None
        if writer is not None:
            books.record = job_record.with_folders(books.record, storage.fence_folders(order))
        if writer is not None and lists_checkpoints:
            job_storage.note_writers_ends(cluster, books)
            question = job_storage.checkpoints_question(books, job_record.place_in(order.run))
        return books.record, writer, question

    record, writer, question = await cluster.books.change(order.job.id, prepare)
    if writer is None:
        return fencing.to_be_written(order)
    try:
        return await storage.write_fence(
            cluster.agents,
            writer.uid,
            order,
            cluster=cluster.books.identity,
            left=record.folders,
            earlier=record.earlier(cluster.books.identity),
            question=question,
        )
    except Refused as refused:
        has_storage = refused.status != wire.NO_STORAGE
        return fencing.to_be_written(order) if has_storage else FenceState.refused(refused.why)
    except NoAnswer:
        return fencing.to_be_written(order)


async def _note_written(
    cluster: AgentCluster, order: FenceOrder, written: WrittenFence, *, is_proven: bool
) -> None:
    def note(books: JobBooks) -> None:
        record = owned_record(books, order.job, order.generation)  # a newer one may own it by now
        books.record = job_record.with_fence(record, order, written.at, written.real)
        if is_proven:
            books.record = job_record.with_held_fence(books.record, order.generation)

    await cluster.books.change(order.job.id, note)


async def _note_newer(
    cluster: AgentCluster, order: FenceOrder, newer: int, *, is_held: bool
) -> None:
    def note(books: JobBooks) -> None:
        books.record = job_record.with_newer_generation(books.record, newer, is_held=is_held)

    await cluster.books.change(order.job.id, note)


# -- The proof ------------------------------------------------------------------------------------


async def _prove(
    cluster: AgentCluster, order: FenceOrder, record: JobRecord
) -> tuple[FenceState, float | None]:
    holds_at = fencing.holds_at(
        record.fenced_at,
        fence_s=cluster.settings.ranks.fence_s,
        margin_s=cluster.settings.fence_margin_s,
    )
    pods, may_have_unknown_pods = await _job_pods(cluster, order)
    unproven = await _unproven(cluster, pods, order, sends_stop=True)
    state = fencing.state(
        [str(pod) for pod in unproven],
        may_have_unknown_pods=may_have_unknown_pods,
        holds_at=holds_at,
        now=cluster.now(),
    )
    if not state.done:
        return state, holds_at
    proven_by_time = [pod.uid for pod in unproven if pod.is_leaving]

    def note(books: JobBooks) -> None:
        owned_record(books, order.job, order.generation)
        if unproven or may_have_unknown_pods:
            _note_unseen_ends(cluster, books, unproven, holds_at)
        _note_held(books, order.generation, proven_by_time)

    await cluster.books.change(order.job.id, note)
    return state, None


async def _job_pods(cluster: AgentCluster, order: FenceOrder) -> tuple[list[Pod], bool]:
    """All pods of the job, and whether there may be others that these books do not have."""
    return await cluster.books.change(
        order.job.id,
        lambda books: ([*books.pods(), *books.leaving()], books.record.may_have_unknown_pods),
    )


async def _unproven(
    cluster: AgentCluster, pods: Sequence[Pod], order: FenceOrder, *, sends_stop: bool
) -> list[Pod]:
    """Those of the pods in which something older may run. All of them are checked at once."""
    checks = (_is_proven(cluster, pod, order, sends_stop=sends_stop) for pod in pods)
    are_proven = await asyncio.gather(*checks)
    return [pod for pod, is_proven in zip(pods, are_proven, strict=True) if not is_proven]


async def _is_proven(
    cluster: AgentCluster, pod: Pod, order: FenceOrder, *, sends_stop: bool
) -> bool:
    """Whether nothing older than the generation can run in this pod.

    `sends_stop`: if that is not known yet, order its agent to stop what is older.
    """
    is_newly_made = pod.generation >= order.generation  # nothing older ever ran here
    if pod.dead_at is not None:
        return True
    if pod.service == "cut_off":  # no request reaches its agent
        return is_newly_made
    if pod.is_leaving or pod.is_out:  # its agent stops nothing any more: its processes have to end
        return await cluster.pods.have_ended(pod)
    agent = cluster.agents.by_uid.get(pod.uid)
    state = agent.state if agent is not None else None
    if is_newly_made or (state is not None and state["stopped_below"] >= order.generation):
        return True
    if not sends_stop:
        return False
    # The agent began after the older processes were stopped, or has not answered this worker since.
    stopped = await ranks.stop(cluster.agents, pod.uid, order.generation, keep=order.kept_ranks)
    return stopped is not None and stopped.is_done


def _note_unseen_ends(
    cluster: AgentCluster, books: JobBooks, unproven: Sequence[Pod], holds_at: float | None
) -> None:
    """Record that ranks ended in the middle of something: cut off, or when they read the fence."""
    for pod in unproven:
        agent = cluster.agents.by_uid.get(pod.uid)
        answered_at = agent.answered_at if agent is not None else None
        note_endings(cluster, books, agent, ended_since=answered_at)
    if (fenced_at := books.record.fenced_at) is not None and holds_at is not None:
        books.record = endings.between(
            books.record, fenced_at, holds_at, now=cluster.now(), wall_now=time.time()
        )


def _note_held(books: JobBooks, generation: int, proven_by_time: Collection[str]) -> None:
    """Record that the fence holds, and drop the leaving pods that time alone proved: they cannot be reached.

    A proof that comes late changes nothing: a newer fence has been written since.
    """
    if books.record.fenced != generation:
        return
    books.record = job_record.with_held_fence(books.record, generation)
    for uid in proven_by_time:
        books.drop(uid)
