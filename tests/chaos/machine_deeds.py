"""How chaos hits pods and nodes of this machine."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

from everstep.agent.processes import proc
from everstep.backends.agents.client.link import NoAnswer, Refused
from everstep.backends.tools import NothingRuns
from everstep.protocol import wire
from tests.chaos.deeds import Outage, lasting, sent, slow_down, step_clock
from tests.chaos.ground import LOOK_S, Hit, awake, send
from tests.chaos.on_machine import OTHER_WORKER, OnMachine, agents, ranks, whole_pod
from tests.chaos.plan import Event
from tests.support.rehearsal import Pod
from tests.support.starving import without_room
from tests.testbed.disk import Busy, Disk

How = Callable[[OnMachine, Event], Awaitable[Hit | None]]


# -- Processes of a pod -----------------------------------------------------------------------------


def kill(of: Callable[[Pod], list[int]], *, must_restart: bool = False) -> How:
    async def how(ground: OnMachine, event: Event) -> Hit | None:
        victim = ground.first_pids(event, of)
        if victim is None or not (hit := send(victim[1], signal.SIGKILL)):
            return None
        text = f"slot {victim[0].slot}: {hit}"
        return Hit(text=text, jobs=(event.job,), must_restart=must_restart)

    return how


def stop(of: Callable[[Pod], list[int]]) -> How:
    """SIGSTOP, and SIGCONT after a while."""

    async def how(ground: OnMachine, event: Event) -> Hit | None:
        victim = ground.first_pids(event, of)
        if victim is None or not (hit := send(awake(victim[1]), signal.SIGSTOP)):
            return None

        async def undo() -> None:
            send(hit, signal.SIGCONT)

        ground.for_a_while(f"stopped {hit}", event.lasts_s, undo)
        text = f"slot {victim[0].slot}: {hit} for {event.lasts_s:g} s"
        return Hit(text=text, jobs=(event.job,))

    return how


def hang(of: Callable[[Pod], list[int]]) -> How:
    """SIGSTOP, for good: only a restart ends it."""

    async def how(ground: OnMachine, event: Event) -> Hit | None:
        victim = ground.first_pids(event, of)
        if victim is None or not (hit := send(awake(victim[1]), signal.SIGSTOP)):
            return None
        return Hit(text=f"slot {victim[0].slot}: {hit}", jobs=(event.job,), must_restart=True)

    return how


# -- Nodes ------------------------------------------------------------------------------------------


def lose_node(options: str) -> How:
    """The node of a slot is down or cut off, and back after a while."""

    async def how(ground: OnMachine, event: Event) -> Hit | None:
        pods = [pod for pod in ground.pods(event) if not ground.is_busy(f"node {pod.node}")]
        if not pods:
            return None
        node = pods[0].node
        jobs = ground.jobs_on(node)
        await ground.r.fault(f"node-down {node} {options}".strip())
        ground.for_a_while(
            f"node {node}", event.lasts_s, partial(ground.r.fault, f"node-up {node}")
        )
        return Hit(text=f"{node} for {event.lasts_s:g} s", jobs=jobs)

    return how


async def slow_node(ground: OnMachine, event: Event) -> Hit | None:
    """All processes of a pod, new ones too, get a tenth of the time for a while."""
    victim = ground.first_pids(event, whole_pod)
    if victim is None or ground.is_busy(what := f"slow pod {victim[0].uid}"):
        return None
    return slow_down(ground, event, what, partial(whole_pod, victim[0]))


async def take_room(ground: OnMachine, event: Event) -> Hit | None:
    """A rank writes nothing to any file for a while, as on a full disk; the script ends at its next write."""
    victim = ground.first_pids(event, ranks)
    if victim is None:
        return None
    hit = lasting(event, ground, f"full disk of {victim[1]}", without_room(*victim[1]))
    return replace(hit, jobs=(event.job,))


def spoil_disk(outage: Callable[[Disk], Outage]) -> How:
    """The disk of records and checkpoints fails for a while; the script ends as it saves."""

    async def how(ground: OnMachine, event: Event) -> Hit | None:
        disk, what = ground.disks[event.job], f"storage {event.job}"
        if ground.is_busy(what):
            return None
        with suppress(Busy):
            return replace(lasting(event, ground, what, outage(disk)), jobs=(event.job,))
        return None

    return how


async def step_worker_clock(ground: OnMachine, event: Event) -> Hit | None:
    """The wall clock of the other worker steps while it lives."""
    worlds = ground.worlds
    return None if worlds is None else step_clock(ground, event, worlds[OTHER_WORKER], OTHER_WORKER)


async def step_node_clock(ground: OnMachine, event: Event) -> Hit | None:
    """The wall clock of a node steps: that of its agents, while they live and where they begin meanwhile."""
    victim = ground.first_pids(event, agents)
    if ground.worlds is None or victim is None:
        return None
    pod, [agent] = victim
    environment = proc.environment(agent) or b""
    assert not environment or f"worlds/{pod.node}".encode() in environment, environment
    return step_clock(ground, event, ground.worlds[pod.node], pod.node)


async def fail_storage(ground: OnMachine, event: Event) -> Hit | None:
    """Writes of ranks and of their agents to the storage of the job end with EIO for a while."""
    folder, what = ground.folders[event.job].checkpoints.parent, f"storage {event.job}"
    if ground.worlds is None or ground.is_busy(what):
        return None
    outage = ExitStack()
    for name in {event.job, *(pod.node for pod in ground.pods(event))}:
        outage.enter_context(ground.worlds[name].without_storage(folder))
    return replace(lasting(event, ground, what, outage), jobs=(event.job,))


# -- Faults and operations of the local cluster -------------------------------------------------------


async def drain(ground: OnMachine, event: Event) -> Hit | None:
    """Announce maintenance of a slot's node, and end it after a while, as a rolling upgrade does."""
    pods = ground.pods(event)
    if not pods:
        return None
    node = pods[0].node
    await ground.r.fault(f"maintenance {node}")
    ground.for_a_while(f"maintenance {node}", event.lasts_s, partial(_cleared, ground, node))
    return Hit(text=f"{node} for {event.lasts_s:g} s", jobs=ground.jobs_on(node))


async def _cleared(ground: OnMachine, node: str) -> None:
    await ground.r.fault(f"clear {node}")


def rehearse(line: str) -> How:
    """One line of `everstep fault` for the job."""

    async def how(ground: OnMachine, event: Event) -> Hit | None:
        with suppress(NothingRuns, ValueError):
            await ground.r.fault(line.format(job=event.job))
            return Hit(text="", jobs=(event.job,))
        return None

    return how


async def lose_storage(ground: OnMachine, event: Event) -> Hit | None:
    """The job's storage is reported as unwritable, and as writable after a while."""
    what = f"storage {event.job}"
    if ground.is_busy(what):
        return None
    hit = await rehearse("storage {job} unwritable")(ground, event)

    async def undo() -> None:
        # Between two pods of the job the line is refused.
        while await rehearse("storage {job} writable")(ground, event) is None:
            await asyncio.sleep(LOOK_S)

    if hit is not None:
        ground.for_a_while(what, event.lasts_s, undo)
    return hit


async def isolate(ground: OnMachine, event: Event) -> Hit | None:
    """Isolate a node of the job, restart the job elsewhere, and release the node after a while."""
    pods = ground.pods(event)
    if not pods:
        return None
    node = pods[0].node

    async def both() -> None:
        await asyncio.to_thread(ground.r.machine.everstep, "isolate", node, "--reason", "chaos")
        await sent(ground, event, "restart", {"level": "job"})
        ground.for_a_while(f"isolation of {node}", event.lasts_s, ground.release)

    ground.in_background(both(), f"isolation of {node}")
    return Hit(text=node, jobs=(event.job,))


async def report_node(ground: OnMachine, event: Event) -> Hit | None:
    """An operator reports the node of a slot as faulty; it is released after a while."""
    pods = ground.pods(event)
    if not pods:
        return None
    fault = {"kind": "node.fault", "node": pods[0].node, "message": "chaos"}
    ground.in_background(sent(ground, event, "report_fault", fault), f"event {event.number}")
    ground.for_a_while(f"report of {pods[0].node}", event.lasts_s, ground.release)
    return Hit(text=pods[0].node, jobs=(event.job,))


async def late_order(ground: OnMachine, event: Event) -> Hit | None:
    """An agent receives a stop of a generation that is over, as from a worker that was away for long."""
    pods = ground.pods(event)
    if not pods:
        return None
    generation = int(pods[0].state()["generation"])
    order = {"generation": generation - 1, "grace_s": 0.0, "evidence": False, "keep": []}
    try:
        await pods[0].folder.request("POST", wire.STOP, {**order, "hold_s": 0.0}, within_s=1.0)
    except NoAnswer:
        return None
    except Refused as refusal:
        return Hit(text=f"slot {pods[0].slot} refuses it: {refusal}")
    return Hit(text=f"slot {pods[0].slot} has nothing older than {generation - 1}")
