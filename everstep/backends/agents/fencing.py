"""Write the fence of a generation through an agent, then prove that it holds, by `rules.fencing`."""

from __future__ import annotations

from collections.abc import Collection

from everstep.agent import wire
from everstep.agent_client import ranks, storage
from everstep.agent_client.link import NoAnswer, Refused
from everstep.backends.agents import job_record
from everstep.backends.agents.job_record import JobRecord
from everstep.backends.agents.pod import Pod
from everstep.backends.agents.ports import AgentCluster, JobBooks
from everstep.backends.agents.transactions import owned_record
from everstep.backends.rules import fencing
from everstep.core.world import FenceOrder, FenceState


async def ensure_fenced(
    cluster: AgentCluster, order: FenceOrder
) -> tuple[FenceState, float | None]:
    """How far the fence is, and when it will hold without proof. The order's folders are absolute."""
    record = await cluster.books.change(
        order.job.id, lambda books: owned_record(books, order.job, order.generation)
    )
    if record.fenced != order.generation:
        if refused := await _write(cluster, order, record):
            return refused, None
        record = await cluster.books.change(order.job.id, lambda books: books.record)
    if record.fence_holds:
        return FenceState(done=True), None
    return await _prove(cluster, order, record)


async def _write(cluster: AgentCluster, order: FenceOrder, record: JobRecord) -> FenceState | None:
    """Write the fence through the agent of the lowest slot. Returns what prevents that, if anything."""
    written_at: float | None = None
    real: Collection[str] = ()
    if wait := fencing.unwritten(order, unwritable=record.unwritable):
        record, writer = await cluster.books.change(
            order.job.id, lambda books: _writer(books, order, is_writable=not wait.unwritable)
        )
        if writer is None:
            return wait
        try:
            answer = await storage.write_fence(
                cluster.agents,
                writer.uid,
                order,
                cluster=cluster.books.identity,
                left=record.folders,
                earlier=record.earlier(cluster.books.identity),
            )
        except Refused as refused:
            return FenceState.refused(refused.why) if refused.status == wire.NO_STORAGE else wait
        except NoAnswer:
            return wait
        if answer["no_folder"]:
            return FenceState.refused(answer["no_folder"], no_folder=True)
        if newer := answer["newer"]:
            await _note_newer(cluster, order, newer, is_held=answer["is_held"])
            return fencing.newer_on_storage(newer)
        written_at, real = cluster.now(), answer["real"].values()

    def note(books: JobBooks) -> None:
        books.record = job_record.with_fence(books.record, order, written_at, real)

    await cluster.books.change(order.job.id, note)
    return None


def _writer(
    books: JobBooks, order: FenceOrder, *, is_writable: bool
) -> tuple[JobRecord, Pod | None]:
    """The pod through which the fence can be written now. Its folders are recorded before."""
    writer = next((pod for pod in books.pods() if pod.slot == order.lowest_slot), None)
    if not is_writable or writer is None:
        return books.record, None
    books.record = job_record.with_folders(books.record, storage.fence_folders(order))
    return books.record, writer


async def _note_newer(
    cluster: AgentCluster, order: FenceOrder, newer: int, *, is_held: bool
) -> None:
    def note(books: JobBooks) -> None:
        books.record = job_record.outdone(books.record, newer, is_held=is_held)

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
    pods, knows_half = await cluster.books.change(
        order.job.id,
        lambda books: ([*books.pods(), *books.leaving()], books.record.may_have_unknown_pods),
    )
    unproven = [pod for pod in pods if not await _is_proven(cluster, pod, order)]
    state = fencing.state(
        [str(pod) for pod in unproven],
        knows_half=knows_half,
        holds_at=holds_at,
        now=cluster.now(),
    )
    if not state.done:
        return state, holds_at
    given_up = [pod.uid for pod in unproven if pod.is_leaving]
    await cluster.books.change(
        order.job.id, lambda books: _note_held(books, order.generation, given_up)
    )
    return state, None


async def _is_proven(cluster: AgentCluster, pod: Pod, order: FenceOrder) -> bool:
    """Whether nothing older than the generation can run in this pod."""
    generation = order.generation
    if pod.dead_at is not None:
        return True
    if pod.service == "cut_off":
        return pod.generation >= generation
    if pod.is_leaving or pod.is_out:
        return await cluster.pods.have_ended(pod)
    agent = cluster.agents.known.get(pod.uid)
    state = agent.state if agent is not None else None
    if state is not None and state["stopped_below"] >= generation:
        return True
    if pod.generation >= generation:  # made for it: nothing older ever ran here
        return True
    # Its agent was not there when the older processes were stopped, or this worker has not heard it since.
    stopped = await ranks.stop(cluster.agents, pod.uid, generation, keep=order.kept)
    return stopped is not None and stopped.is_done


def _note_held(books: JobBooks, generation: int, given_up: Collection[str]) -> None:
    """Record that the fence holds, and drop pods that had to end by themselves and cannot be reached.

    A proof that comes late changes nothing: a newer fence has been written since.
    """
    if books.record.fenced != generation:
        return
    books.record = job_record.with_held_fence(books.record, generation)
    for uid in given_up:
        books.drop(uid)
