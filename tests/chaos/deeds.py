"""How each action of chaos is done on this machine, to the victim that its event names.

Nothing here judges what comes of it, nor holds what it may cost: that is the table in `actions.py`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial

from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError

from everstep.backends.agents.client.link import NoAnswer, Refused
from everstep.backends.tools import NothingRuns
from everstep.core import names
from everstep.protocol import wire
from tests.chaos.on_machine import (
    LOOK_S,
    Hit,
    OnMachine,
    new_id,
    send,
    spoilable,
    step_of,
)
from tests.chaos.plan import Event
from tests.support.byhand import LAST, reset
from tests.support.child import ChildFailed
from tests.support.rehearsal import Pod
from tests.support.starving import stopped, without_descriptors

REACHED_S = 5.0
"""So long the server is waited for by what only makes sense at once."""

How = Callable[[OnMachine, Event], Awaitable[Hit | None]]
"""Carries an action out; None: there was nothing that it could be done to."""


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
        if victim is None or not (hit := send(victim[1], signal.SIGSTOP)):
            return None

        async def undo() -> None:
            send(hit, signal.SIGCONT)

        ground.for_a_while(f"stopped {hit}", event.lasts_s, undo)
        text = f"slot {victim[0].slot}: {hit} for {event.lasts_s:g} s"
        return Hit(text=text, jobs=(event.job,))

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


# -- Worker and server ------------------------------------------------------------------------------


async def kill_worker(ground: OnMachine, event: Event) -> Hit | None:
    if ground.is_busy("worker"):
        return None
    ground.r.worker.kill9()
    ground.for_a_while("worker", event.lasts_s, partial(worker_is_back, ground))
    return Hit(text=f"for {event.lasts_s:g} s")


async def worker_is_back(ground: OnMachine) -> None:
    """Start it until it stays: without a server a worker ends, and what runs it starts it again."""
    while True:
        with suppress(ChildFailed):
            await ground.r.worker.restart()
            return


async def kill_server(ground: OnMachine, event: Event) -> Hit | None:
    if ground.is_busy("server"):
        return None
    ground.r.server.kill()
    ground.for_a_while("server", event.lasts_s, ground.r.server.restart)
    return Hit(text=f"for {event.lasts_s:g} s")


Outage = Callable[[OnMachine], AbstractContextManager[object]]


def lacks(what: str, outage: Outage) -> How:
    """Let worker or server be without something for a while; it lives meanwhile."""

    async def how(ground: OnMachine, event: Event) -> Hit | None:
        if ground.is_busy(what):
            return None
        stack = ExitStack()
        stack.enter_context(outage(ground))

        async def undo() -> None:
            stack.close()

        ground.for_a_while(what, event.lasts_s, undo)
        return Hit(text=f"for {event.lasts_s:g} s")

    return how


def worker_stands_still(ground: OnMachine) -> AbstractContextManager[object]:
    return stopped(ground.r.worker.pid)


def server_stands_still(ground: OnMachine) -> AbstractContextManager[object]:
    return stopped(ground.r.server.pid)


def worker_opens_nothing(ground: OnMachine) -> AbstractContextManager[object]:
    return without_descriptors(ground.r.worker.pid)


# -- Checkpoints ------------------------------------------------------------------------------------


async def halve_checkpoint(ground: OnMachine, event: Event) -> Hit | None:
    """The newest checkpoint loses its second half, as one that was never written to its end."""
    folder = ground.folders[event.job]
    path = next(spoilable(folder), None)
    if path is None:
        return None
    folder.note_spoiled(step_of(path))
    with suppress(FileNotFoundError), path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    return Hit(text=path.name, jobs=(event.job,))


# -- Operations -------------------------------------------------------------------------------------


def operate(name: str, /, **args: object) -> How:
    """An update of the job. It may arrive late: whatever is away by now has to come back first."""

    async def how(ground: OnMachine, event: Event) -> Hit | None:
        ground.in_background(_sent(ground, event, name, args), f"event {event.number}")
        return Hit(text="", jobs=(event.job,))

    return how


async def _sent(ground: OnMachine, event: Event, name: str, args: Mapping[str, object]) -> None:
    with suppress(WorkflowUpdateFailedError):
        await ground.command(event.job, name, args, id=new_id(event))


async def pause(ground: OnMachine, event: Event) -> Hit | None:
    """Pause, and resume after a while, which begins when the pause has been accepted."""
    what = f"pause {event.job}"
    if ground.is_busy(what):
        return None

    async def both() -> None:
        await _sent(ground, event, "pause", {"reason": "chaos"})
        ground.for_a_while(what, event.lasts_s, partial(_sent, ground, event, "resume", {}))

    ground.in_background(both(), what)
    return Hit(text=f"for {event.lasts_s:g} s", jobs=(event.job,))


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
        await _sent(ground, event, "restart", {"level": "job"})
        ground.for_a_while(f"isolation of {node}", event.lasts_s, ground.release_all)

    ground.in_background(both(), f"isolation of {node}")
    return Hit(text=node, jobs=(event.job,))


async def restart_twice(ground: OnMachine, event: Event) -> Hit | None:
    """The same command arrives twice at once, and once more after a while: it counts once."""
    command = new_id(event)

    async def once() -> None:
        with suppress(WorkflowUpdateFailedError):
            await ground.command(event.job, "restart", {"level": "in_place"}, id=command)

    async def signalled() -> None:
        """As a client that never learns whether its message arrived."""
        with suppress(RPCError):
            await ground.handle(event.job).signal("restart", {"level": "in_place", "id": command})

    for _ in range(2):
        ground.in_background(once(), f"event {event.number}")
    ground.for_a_while(f"event {event.number}", event.lasts_s, signalled)
    return Hit(text="", jobs=(event.job,))


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


async def stop_and_again(ground: OnMachine, event: Event) -> Hit | None:
    """Stop the job in order, and submit it again under its ID."""
    what = f"life of {event.job}"
    if ground.is_busy(what):
        return None

    async def both() -> None:
        await _sent(ground, event, "stop", {"grace_s": 1, "reason": "chaos"})
        await ground.r.report(ground.handle(event.job))
        await ground.start_again(event.job)

    ground.in_background(both(), what)
    ground.lives[event.job] += 1
    return Hit(text="", jobs=(event.job,))


async def reset_job(ground: OnMachine, event: Event) -> Hit | None:
    """Reset the workflow of the job to its newest workflow task, as an operator does by hand."""
    what = f"life of {event.job}"
    if ground.is_busy(what) or ground.is_busy("server"):
        return None
    try:
        await asyncio.wait_for(reset(ground.handle(event.job), to=LAST), REACHED_S)
    except (RPCError, TimeoutError):
        return None
    return Hit(text="", jobs=(event.job,))


async def terminate_recovery(ground: OnMachine, event: Event) -> Hit | None:
    """Terminate the Recovery that is under way: its job reads the cluster and goes on."""
    running = f"WorkflowType = '{names.RECOVERY}' AND ExecutionStatus = 'Running'"
    try:
        async with asyncio.timeout(REACHED_S):
            rows = [row async for row in ground.r.client.list_workflows(running)]
            of_job = [row for row in rows if row.id.startswith(f"{event.job}/")]
            if not of_job:
                return None
            await ground.r.client.get_workflow_handle(of_job[0].id).terminate(reason="chaos")
    except (RPCError, TimeoutError):
        return None
    return Hit(text=of_job[0].id, jobs=(event.job,))
