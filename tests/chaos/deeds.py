"""How chaos hits workers, server, checkpoints and workflows, and operates jobs: the same on any cluster.

Nothing here judges what comes of it, nor holds what it may cost: that is the table in `actions.py`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError

from everstep.core import names
from tests.chaos.ground import LOOK_S, Folder, Ground, Hit, awake, new_id, say, spoilable, step_of
from tests.chaos.plan import Event
from tests.support.byhand import LAST, reset
from tests.support.child import ChildFailed
from tests.support.starving import run_slowly, stopped
from tests.support.wire import Wire
from tests.support.workerproc import ROOT, WorkerProcess
from tests.support.world import World

REACHED_S = 5.0
"""How long a deed that only makes sense at once waits for the server."""

SLOW_TIMES = 4
"""Times as long as other things: a slow node, a clock that is wrong, workers of the version before."""

FORGETS_TIMES = 3
"""Times as long as other things last, an older copy of the database is kept before it is restored."""

Outage = AbstractContextManager[object]

How = Callable[[Ground, Event], Awaitable[Hit | None]]
"""Carries an action out; None: there was nothing that it could be done to."""


# -- Worker and server ------------------------------------------------------------------------------


def worker_of(ground: Ground, event: Event) -> tuple[WorkerProcess, str] | None:
    """The worker of the event, if nothing is done to it yet, and what it is called."""
    number = int(event.share * len(ground.workers))
    what = f"worker {number}"
    return None if ground.is_busy(what) else (ground.workers[number], what)


async def kill_worker(ground: Ground, event: Event) -> Hit | None:
    if (victim := worker_of(ground, event)) is None:
        return None
    worker, what = victim
    worker.kill9()
    ground.for_a_while(what, event.lasts_s, partial(is_back, worker))
    return Hit(text=f"{what} for {event.lasts_s:g} s")


async def roll_back(ground: Ground, event: Event) -> Hit | None:
    """Workers of the version before take the place of those of today one by one, and those of today again."""
    if ground.before is None or ground.is_busy("rollout"):
        return None
    ground.in_background(_rolled_back_and_out(ground, ground.before, event.lasts_s), "rollout")
    return Hit(text="", jobs=tuple(ground.folders))


async def _rolled_back_and_out(ground: Ground, before: Path, seconds: float) -> None:
    for root, rest_s in ((before, SLOW_TIMES * seconds), (ROOT, 0.0)):
        for number, worker in enumerate(ground.workers):
            what = f"worker {number}"
            while ground.is_busy(what):
                await asyncio.sleep(LOOK_S)
            worker.kill9()
            worker.root = root
            ground.in_background(is_back(worker), what)
            with suppress(TimeoutError):
                await asyncio.wait_for(ground.is_over.wait(), seconds)
        say(f"all workers are of {'today' if root == ROOT else 'the version before'}")
        with suppress(TimeoutError):
            await asyncio.wait_for(ground.is_over.wait(), rest_s)


async def is_back(worker: WorkerProcess) -> None:
    """Start it until it stays: without a server a worker ends, and what runs it starts it again."""
    while True:
        with suppress(ChildFailed):
            await worker.restart()
            return


async def kill_server(ground: Ground, event: Event) -> Hit | None:
    if ground.is_busy("server"):
        return None
    ground.server.kill()
    ground.for_a_while("server", event.lasts_s, ground.server.restart)
    return Hit(text=f"for {event.lasts_s:g} s")


def lasting(event: Event, ground: Ground, what: str, outage: Outage) -> Hit:
    """Let it begin, and end after a while."""
    stack = ExitStack()
    stack.enter_context(outage)

    async def undo() -> None:
        stack.close()

    ground.for_a_while(what, event.lasts_s, undo)
    return Hit(text=f"{what} for {event.lasts_s:g} s")


def weaken_worker(outage: Callable[[int], Outage]) -> How:
    """A worker lives and lacks something for a while."""

    async def how(ground: Ground, event: Event) -> Hit | None:
        if (victim := worker_of(ground, event)) is None or victim[0].returncode is not None:
            return None
        return lasting(event, ground, victim[1], outage(victim[0].pid))

    return how


async def stop_server(ground: Ground, event: Event) -> Hit | None:
    if ground.is_busy("server"):
        return None
    return lasting(event, ground, "server", stopped(ground.server.pid))


async def restore_server(ground: Ground, event: Event) -> Hit | None:
    """The server's database is an older copy after a while; workers are restarted, as the docs require it."""
    lives = any(ground.is_busy(f"life of {job}") for job in ground.folders)
    if lives or ground.is_busy("server"):  # a life that begins meanwhile would be forgotten
        return None
    seconds = FORGETS_TIMES * event.lasts_s
    ground.in_background(_restored(ground, seconds), "server")
    return Hit(text=f"by a copy that lacks {seconds:g} s", jobs=tuple(ground.folders), forgets=True)


async def _restored(ground: Ground, seconds: float) -> None:
    database = ground.server.db_file
    assert database is not None
    copy = database.with_name("older")
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    files = [database.with_name(database.name + end) for end in ("", "-wal", "-shm")]
    ground.server.kill()
    for file in files:
        if file.exists():
            shutil.copy(file, copy)
    await ground.server.restart()
    with suppress(TimeoutError):
        await asyncio.wait_for(ground.is_over.wait(), seconds)
    ground.server.kill()
    for file in files:
        file.unlink(missing_ok=True)
        if (copy / file.name).exists():
            shutil.copy(copy / file.name, file)
    await ground.server.restart()
    for number, worker in enumerate(ground.workers):
        while ground.is_busy(f"worker {number}"):
            await asyncio.sleep(LOOK_S)
        ground.in_background(is_back(worker), f"worker {number}")


def break_wire(how_broken: Callable[[Wire], None]) -> How:
    """The way between the other worker and the server is broken for a while."""

    async def how(ground: Ground, event: Event) -> Hit | None:
        if ground.is_busy("wire"):
            return None
        how_broken(ground.wire)

        async def undo() -> None:
            ground.wire.release()
            ground.wire.accept()

        ground.for_a_while("wire", event.lasts_s, undo)
        return Hit(text=f"for {event.lasts_s:g} s")

    return how


# -- Nodes ------------------------------------------------------------------------------------------


def slow_down(ground: Ground, event: Event, what: str, pids: Callable[[], Sequence[int]]) -> Hit:
    """Let these get little of the processor for a while; what another event has stopped stays stopped."""
    seconds = SLOW_TIMES * event.lasts_s

    async def work() -> None:
        slow = asyncio.create_task(run_slowly(lambda: awake(pids())))
        with suppress(TimeoutError):
            await asyncio.wait_for(ground.is_over.wait(), seconds)
        slow.cancel()
        with suppress(asyncio.CancelledError):
            await slow

    ground.in_background(work(), what)
    return Hit(text=f"{what}, for {seconds:g} s", jobs=(event.job,))


STEPS_S = (-3600.0, -60.0, -1.5, 1.5, 60.0, 3600.0)
"""So far a wall clock is set, and set back after a while."""


def step_clock(ground: Ground, event: Event, world: World, name: str) -> Hit | None:
    """Let the wall clock of a node or of a worker step, and back after a while."""
    if ground.is_busy(what := f"clock of {name}"):
        return None
    ahead_s = STEPS_S[int(event.share * len(STEPS_S))]
    longer = replace(event, lasts_s=SLOW_TIMES * event.lasts_s)
    hit = lasting(longer, ground, what, world.ahead(ahead_s))
    return replace(hit, text=f"{hit.text}, by {ahead_s:g} s")


# -- Checkpoints ------------------------------------------------------------------------------------


def checkpoint_of(ground: Ground, event: Event) -> tuple[Folder, Path] | None:
    """The newest checkpoint that may be spoiled. None while the storage hangs or fails: we would with it."""
    folder = ground.folders[event.job]
    path = None if ground.is_busy(f"storage {event.job}") else next(spoilable(folder), None)
    return None if path is None else (folder, path)


async def halve_checkpoint(ground: Ground, event: Event) -> Hit | None:
    """The newest checkpoint loses its second half, as one that was never written to its end."""
    if (victim := checkpoint_of(ground, event)) is None:
        return None
    folder, path = victim
    folder.note_spoiled(step_of(path))
    with suppress(FileNotFoundError), path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    return Hit(text=path.name, jobs=(event.job,))


async def change_checkpoint(ground: Ground, event: Event) -> Hit | None:
    """One byte of the newest checkpoint is another one: only the sum in it shows that."""
    if (victim := checkpoint_of(ground, event)) is None:
        return None
    folder, path = victim
    folder.note_spoiled(step_of(path))
    with suppress(FileNotFoundError):
        text = path.read_text()
        path.write_text(text.replace("0x1.", "0x2.", 1))
    return Hit(text=path.name, jobs=(event.job,))


# -- Operations -------------------------------------------------------------------------------------


def operate(name: str, /, **args: object) -> How:
    """An update of the job. It may arrive late: whatever is away by now has to come back first."""

    async def how(ground: Ground, event: Event) -> Hit | None:
        ground.in_background(sent(ground, event, name, args), f"event {event.number}")
        return Hit(text="", jobs=(event.job,))

    return how


async def sent(ground: Ground, event: Event, name: str, args: Mapping[str, object]) -> None:
    with suppress(WorkflowUpdateFailedError):
        await ground.command(event.job, name, args, id=new_id(event))


async def pause(ground: Ground, event: Event) -> Hit | None:
    """Pause, and resume after a while, which begins when the pause has been accepted."""
    what = f"pause {event.job}"
    if ground.is_busy(what):
        return None

    async def both() -> None:
        await sent(ground, event, "pause", {"reason": "chaos"})
        ground.for_a_while(what, event.lasts_s, partial(sent, ground, event, "resume", {}))

    ground.in_background(both(), what)
    return Hit(text=f"for {event.lasts_s:g} s", jobs=(event.job,))


async def restart_twice(ground: Ground, event: Event) -> Hit | None:
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


async def stop_and_again(ground: Ground, event: Event) -> Hit | None:
    """Stop the job in order, and submit it again under its ID."""
    what = f"life of {event.job}"
    if ground.is_busy(what) or ground.is_busy("server"):
        return None

    async def both() -> None:
        await sent(ground, event, "stop", {"grace_s": 1, "reason": "chaos"})
        await ground.report(event.job)
        await ground.start_again(event.job)

    ground.in_background(both(), what)
    ground.lives[event.job] += 1
    return Hit(text="", jobs=(event.job,))


async def reset_job(ground: Ground, event: Event) -> Hit | None:
    """Reset the workflow of the job to its newest workflow task, as an operator does by hand."""
    what = f"life of {event.job}"
    if ground.is_busy(what) or ground.is_busy("server"):
        return None
    try:
        await asyncio.wait_for(reset(ground.handle(event.job), to=LAST), REACHED_S)
    except (RPCError, TimeoutError):
        return None
    return Hit(text="", jobs=(event.job,))


async def terminate_recovery(ground: Ground, event: Event) -> Hit | None:
    """Terminate the Recovery that is under way: its job reads the cluster and goes on."""
    running = f"WorkflowType = '{names.RECOVERY}' AND ExecutionStatus = 'Running'"
    try:
        async with asyncio.timeout(REACHED_S):
            rows = [row async for row in ground.client.list_workflows(running)]
            of_job = [row for row in rows if row.id.startswith(f"{event.job}/")]
            if not of_job:
                return None
            await ground.client.get_workflow_handle(of_job[0].id).terminate(reason="chaos")
    except (RPCError, TimeoutError):
        return None
    return Hit(text=of_job[0].id, jobs=(event.job,))
