"""The protocol every backend keeps: few verbs, each safe to repeat, each with its promise.

- Every verb may be called twice, by two workers, and may arrive late. An order of an older generation
  than the newest one given out raises `StaleGeneration` and changes nothing.
- A verb starts what it names and returns its progress at once. To wait, call `observe`, which returns
  as soon as anything about the job changed, and then the verb again.
- If the cluster cannot be reached a verb raises `BackendUnavailable`; nothing may be concluded then.
- A verb for a job of other books, or for a generation that these never gave, raises `WrongCluster` and
  changes nothing: processes that are not in these books may still run.
- Times are seconds on the backend's clock, which never goes back.

`tests/backends/contract` holds each promise against every backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from everstep.chronicle.chronicle import Entry
from everstep.core.facts import Fact
from everstep.core.world import (
    Checkpoint,
    DumpOrder,
    DumpState,
    FenceOrder,
    FenceState,
    GoneState,
    HealState,
    JobRef,
    Leftover,
    NodeView,
    Observation,
    PlaceOrder,
    PlaceState,
    PrecheckOrder,
    PrecheckState,
    SaveOrder,
    SaveState,
    SetAside,
    SetAsideOrder,
    StartOrder,
    StartState,
    StopOrder,
    StopState,
)

NO_FOLDERS: Mapping[str, str] = MappingProxyType({})


class Backend(Protocol):
    """A cluster, as the engine uses it."""

    async def clock(self) -> float:
        """The backend's time now."""

    async def identity(self) -> str:
        """The unique name of these books: made once, the same for every worker."""

    async def nodes(self, job: JobRef | None = None) -> tuple[NodeView, ...]:
        """Every node the cluster has, in a stable order, isolated and lost ones included.

        `maintenance` of a node is why it takes no new pods for now, for as long as that lasts.

        With a job: a node that could take no other pod of it has no free slot, if the backend can see that.
        """

    async def ensure_generation(
        self, job: JobRef, key: str, *, folders: Mapping[str, str] = NO_FOLDERS, above: int = 0
    ) -> int:
        """The generation for `key` of this run: the same key, the same answer, for ever.

        A new key gets one more than any generation ever given to this job ID, by any run, and than
        any that `ensure_fenced` found on storage. From then on orders of older generations are
        refused: of several runs the one that called last owns the job. The folders (path -> the field
        that names it) are the job's until `ensure_gone` is done; if one of them is another job's,
        `FolderTaken` is raised and nothing is changed.

        The answer is greater than `above`, the newest generation in the job's state: a key that was
        answered with that or less counts as new.
        """

    async def ensure_adopted(
        self, job: JobRef, *, generation: int, folders: Mapping[str, str] = NO_FOLDERS
    ) -> str:
        """Take over a job that is missing in these books, or incomplete; return their identity.

        Every process of the earlier books that this cluster can see is ended first, or
        `CommandRejected` is raised. The fences of its folders end the others. As no books list all
        of those, the next fence holds by its time alone. The same call for the same generation has
        the same answer. A job that is complete in these books is left alone, and the answer is empty.
        """

    async def observe(
        self, job: JobRef, *, cursor: str, until: float | None = None, wait_s: float = 1.0
    ) -> Observation:
        """Everything about the job, with the facts after `cursor` (empty: all that are kept).

        Returns at once if there are facts after the cursor or `until` has come; else as soon as
        anything about the job changes (a fact, a pod's state, a first step, an exit, an answer to
        a pending order), at `until`, or after `wait_s` of real time, whichever is first;
        where nothing changed for so long it may show what was there at the beginning. A missed
        call loses nothing: the same cursor brings the same facts. Facts come in the order in which
        they were seen, each with an identity that never changes. A fact from before the cursor may
        come again, with the same identity. A cursor of other books counts as the beginning.
        """

    async def check(self, job: JobRef) -> tuple[Fact, ...]:
        """Check the health of this job's nodes and devices now, by its agents and the cluster.

        Read-only, at most 2 s. Returns the faults that are present at this moment, with the
        identities under which `observe` reports them.
        """

    async def check_storage(self, job: JobRef) -> str:
        """What keeps the folder of the job's checkpoints from being written now; empty: nothing.

        Read-only. A folder that is missing can be written where it can be made. Where no agent answers
        nothing is reported.
        """

    async def ensure_stopped(self, order: StopOrder) -> StopState:
        """End the processes of older generations; call again until done. Pods and containers stay.

        A slot counts as stopped when its agent reports it, its processes are seen gone, or its node is
        proven out of service. A slot that does not answer stays pending.

        Ranks to keep go on with the same process, as members of the order's generation: the answer
        names those that do. A later order of this generation that keeps fewer ends the others.
        """

    async def ensure_healed(
        self, job: JobRef, *, generation: int, node: str, device: int
    ) -> HealState:
        """Let the device repair itself; call again until it is healed or failed.

        The time of the first call is in the answer where the cluster records it.
        Asking again after a failure repeats the failure; a device without a fault is healed.
        """

    async def ensure_placed(self, order: PlaceOrder) -> PlaceState:
        """Reserve and create all pods of the order, or none; call again until placed.

        The first call begins to remove the old pods of the slots to recreate; whether their place
        has to be cleared before a new pod is made is the order's `clearing_s`. The same generation
        always gets the same pods. A slot without a pod gets the one that stands by for it, else a spare
        one; spares that are not taken go on standing by if the order names them. Until placed, `places`
        says how many slots could live now, or None where only a try can show it; then a smaller order of
        this generation replaces the larger one.
        """

    async def ensure_standby(self, order: PlaceOrder) -> PlaceState:
        """Create a pod beside the one of each slot to recreate, and stop nothing; call again until placed.

        Each is on a node of its own. `ensure_placed` of a later generation that recreates such a slot gives
        it this pod. Until then it is no pod of the job: it is not observed, and no fact about it is reported.
        All are created or none, and none before an order to place that waits. One that cannot be used any
        more (lost, its node isolated or avoided) is removed and another one created. Pods that stand by for
        other slots are removed; so is every one at the next start.

        A spare stands by for whichever slot needs a pod first: `recreate` has a number behind the job's
        slots, in place of a slot. The spares of the order that are there are neither removed nor created,
        unless one has to stand by for a slot to recreate.
        """

    async def ensure_prechecked(self, order: PrecheckOrder) -> PrecheckState:
        """Run the environment checks in the pods of these slots; call again until done.

        Once per generation and pod: asking again repeats the answer. A pod that passed is not
        looked at again, in later generations neither.
        """

    async def ensure_prewarmed(self, job: JobRef, *, spares: tuple[int, ...]) -> None:
        """Have these spares import ahead what the prewarm helpers of the job's pods have imported.

        Returns at once, and may do nothing: a start waits for no import.
        """

    async def ensure_fenced(self, order: FenceOrder) -> FenceState:
        """Write the fence, then wait for proof that every older process is gone.

        Where proof cannot be had, done once the fence time has passed since the write. As long as
        the storage takes no fence, the answer says what is wrong with it. If a newer generation of the
        job is found there, or one of a job that has ended, the answer has it (`newer`): the job needs a
        generation above it. Raises `FolderTaken` if a folder is that of another job which has not ended.

        Where every older process was proven gone before the fence was written, the answer that it is
        done may have what is saved (`listing`), as `checkpoints` and `ensure_set_aside` would return it.
        """

    async def checkpoints(self, job: JobRef) -> tuple[Checkpoint, ...]:
        """The complete checkpoints of the job, newest first, bad ones marked.

        Raises `NoAgentAvailable` if none of its agents answers: only they see its storage.
        """

    async def ensure_set_aside(self, order: SetAsideOrder) -> SetAside:
        """Rename checkpoints that must not be resumed from; return the paths of all that were renamed.

        These are all of this generation, now or before: a worker that was killed before it got the answer
        calls again, and may name none. Never while ranks of this generation or a newer one run. What cannot
        be renamed stays, and the answer says why. Raises `NoAgentAvailable` like `checkpoints`.
        """

    async def ensure_started(self, order: StartOrder) -> StartState:
        """Start the ranks in every slot of the order that does not run this generation yet.

        A slot where that cannot be done (no such program or folder, no process to be had) is named
        as failed with the reason; asking again repeats the failure. So is one where the ranks kept by
        the stop are not exactly those that live.
        """

    async def ensure_save_requested(self, order: SaveOrder) -> SaveState:
        """Send the ranks of this generation the signal on which they save; call again until it is saved.

        Once for each request: the same one again sends nothing. One that comes while another waits for its
        checkpoint joins that. A rank without a handler for the signal gets none, and goes on.
        """

    async def ensure_dumped(self, order: DumpOrder) -> DumpState:
        """Save the snapshots of this step by the functions that their ranks named; call again until done.

        Between the stop and the start of a generation, once for each: the same order again starts nothing.
        """

    async def ensure_isolated(self, node: str, *, reason: str) -> None:
        """Let nothing new land on the node. What runs there goes on. Kept until released.

        Of several reasons the newest one is kept.
        `NODE/3` is device 3 of that node: no new pod gets it, and the node's others are used as before.
        `ClusterRefused` if the cluster can store no isolation of this name, or not with this reason.
        """

    async def ensure_released(self, node: str) -> None:
        """Let new pods land on the node again. Releasing a free node is fine."""

    async def ensure_recorded(self, job: JobRef, entries: tuple[Entry, ...]) -> None:
        """Write the entries beside the job's model; what is there already is not written again.

        Per phase a folder `<model_dir>/<time it began>_restartable` with `run.log`, a line per entry,
        and `summary.json`, what is known of each run. `BackendUnavailable` says why it cannot be done
        now (no storage, no room): nothing else depends on it. Where a job has no folder nothing is
        written. An agent of the job does it where one answers; it may come when nothing of the job is left.
        """

    async def ensure_gone(self, job: JobRef, *, grace_s: float = 0.0) -> GoneState:
        """End and remove everything of the job; call again until done.

        Generations given to the job ID stay known. A later run of the same ID is refused nothing.
        """

    async def leftovers(self) -> tuple[Leftover, ...]:
        """The jobs of which anything (pods, reservations, processes) is on the cluster."""

    async def close(self) -> None:
        """Let go of connections. The cluster and what runs on it stay."""
