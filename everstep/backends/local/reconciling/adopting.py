"""Takes over a job from other books: checks where its folders are, outdates its fences, ends its processes.

No agent of these books belongs to the job yet, so the processes of the machine are read directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from everstep.agent.processes import members, proc
from everstep.agent.storage import fence
from everstep.backends.local.database.placing import is_pod_of
from everstep.backends.local.reconciling.slow_storage import read
from everstep.core.errors import BackendUnavailable, CommandRejected

END_S = 10.0
"""Processes that take longer to end than this cannot be ended by this worker."""
POLL_S = 0.02
FENCES_S = 5.0
"""Time limit of one pass over the fences of all folders. All passes, and the end of the processes, have to
fit into the time after which a worker gives up a call."""


async def refuse_elsewhere(folders: Sequence[str], owner: fence.FenceOwner) -> None:
    """Raise CommandRejected if relative folders of the owner are readable and none has a fence of it."""
    try:
        if not folders or any(await asyncio.gather(*(_has_fence(one, owner) for one in folders))):
            return
    except BackendUnavailable:
        return
    raise CommandRejected(
        f"there is no fence of job {owner[0]} in {folders[0]}: its relative folders begin where its first "
        "worker stood; start this worker there, or end the job and submit it again"
    )


async def _has_fence(folder: str, owner: fence.FenceOwner) -> bool:
    def look() -> bool:
        try:
            return owner in fence.read(folder)
        except FileNotFoundError:
            return False

    return await read(folder, look, within_s=FENCES_S)


async def outdate(folders: Collection[str], owner: fence.FenceOwner, *, generation: int) -> int:
    """Outdate the owner's fences up to this generation, or to a newer one found there; return that one."""
    fences = await asyncio.gather(*(_fence_of(folder, owner) for folder in folders))
    generation = max([generation, *(one.generation for one in fences if one is not None)])
    newer = fence.Fence(owner[0], "", owner[1], generation + 1)
    await asyncio.gather(*(_outdate_one(folder, newer) for folder in folders))
    return generation


async def _fence_of(folder: str, owner: fence.FenceOwner) -> fence.Fence | None:
    """The owner's fence in this folder; None where there is none, or it cannot be read."""
    # A process that cannot read the folder either ends after `fence_s`.
    with contextlib.suppress(OSError, BackendUnavailable):
        return (await read(folder, partial(fence.read, folder), within_s=FENCES_S)).get(owner)
    return None


async def _outdate_one(folder: str, newer: fence.Fence) -> None:
    with contextlib.suppress(OSError, BackendUnavailable):
        await read(folder, partial(fence.outdate, folder, newer), within_s=FENCES_S)


async def end_processes(owner: fence.FenceOwner, *, spare: Collection[str]) -> None:
    """End every process of the owner's pods on this machine, agents and wardens included.

    A stopped process cannot read the fence, and a process whose parents were killed has no warden: both
    are found by their marks alone. `spare` holds the pods in these books. Raises CommandRejected if a
    process does not end.
    """

    def is_of_owner(uid: str) -> bool:
        return uid not in spare and is_pod_of(uid, *owner)

    deadline = time.monotonic() + END_S
    while processes := await asyncio.to_thread(_living, is_of_owner):
        if time.monotonic() > deadline:
            numbers = ", ".join(f"{process.pid} ({process.name})" for process in processes[:5])
            raise CommandRejected(
                f"{len(processes)} processes of job {owner[0]} run on this machine and cannot be ended: "
                f"{numbers}; end them, then adopt the job again"
            )
        proc.kill(processes)
        await asyncio.sleep(POLL_S)


def _living(uid_matches: Callable[[str], bool]) -> list[proc.Process]:
    try:
        return members.of_pods(uid_matches)
    except OSError as error:
        raise BackendUnavailable(f"the processes of this machine cannot be read: {error}") from None
