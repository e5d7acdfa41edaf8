"""The fake cluster: the verbs of the protocol without waiting, over one state in memory.

Each verb refuses an order of an older generation, carries out what can be done now and returns its progress.
No verb takes virtual time; what takes time sets a timer. Waiting is in `backend.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import takewhile

from everstep.backends.base import NO_FOLDERS
from everstep.backends.fake import cluster_views
from everstep.backends.fake.settings import FakeSettings
from everstep.backends.fake.simulated import fence, health, placing, pods, processes
from everstep.backends.fake.simulated.model import Job, Pod
from everstep.backends.fake.simulated.state import FakeState
from everstep.backends.rules import ownership
from everstep.chronicle.chronicle import Entry
from everstep.core.errors import BackendUnavailable, NoAgentAvailable
from everstep.core.facts import Fact
from everstep.core.waits import WaitKind
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
    RankPosition,
    SaveOrder,
    SaveState,
    SetAside,
    SetAsideOrder,
    StartOrder,
    StartState,
    StopOrder,
    StopState,
)


class FakeCluster:
    """Nodes n0, n1, ... with devices, and the jobs on them. Not thread-safe; one event loop."""

    def __init__(self, settings: FakeSettings | None = None) -> None:
        self.settings = settings or FakeSettings()
        self.state = FakeState(self.settings)
        self.state.capacity_changed = partial(placing.capacity_changed, self.state)

    # --- seeing ---------------------------------------------------------------------------------

    def clock(self) -> float:
        return self.state.now

    def identity(self) -> str:
        return self.state.books

    def refuse_strange(self, job: JobRef) -> None:
        ownership.refuse_strange(job, self.state.books)

    def nodes(self, job: JobRef | None = None) -> tuple[NodeView, ...]:  # noqa: ARG002  # all may use all
        return placing.node_views(self.state)

    def news(self, job_id: str, version: int) -> tuple[int, bool]:
        """The version that the job has reached, and whether there are facts after the given one."""
        job = self.state.job(job_id)
        return job.version, bool(job.facts) and job.facts[-1][0] > version

    def observation(self, job_id: str, version: int) -> Observation:
        """The job as it is now; `observe` without the waiting."""
        job = self.state.job(job_id)
        now = self.state.now
        return Observation(
            now=now,
            cursor=str(job.version),
            pods=cluster_views.cached_pod_views(job, now),
            checkpoint=self._newest_saved(job),
            facts=_facts_after(job, version),
            generation=job.newest,
        )

    def check(self, job: JobRef) -> tuple[Fact, ...]:
        return cluster_views.present_facts(self.state.job(job.id))

    def check_storage(self, job: JobRef) -> str:
        unwritable = self.state.job(job.id).unwritable
        return "" if unwritable is None else unwritable.message

    def checkpoints(self, job: JobRef) -> tuple[Checkpoint, ...]:
        job_state = self.state.job(job.id)
        if job_state.checkpoints_path is not None:
            _require_agent(job_state)
        return self._saved(job_state)

    def ensure_set_aside(self, order: SetAsideOrder) -> SetAside:
        job = self._owned(order.job, order.generation)
        path = job.checkpoints_path
        if path is None:
            return SetAside()
        _require_agent(job, stopped=order.generation)
        return SetAside(moved=self.state.storage.set_aside(path, order.paths, order.generation))

    def ensure_save_requested(self, order: SaveOrder) -> SaveState:
        job = self._owned(order.job, order.generation)
        training = job.training
        if training is None or not training.is_stepping or training.path is None:
            return SaveState()
        ranks = tuple(sorted(rank for pod in job.pods.values() for rank in pod.ranks))
        if not training.script.saves_on_signal:
            return SaveState(deaf=ranks)
        if order.request not in training.requested:
            step = training.step_at(self.state.now)
            self.state.storage.save(training.path, [(step, self.state.now)])
            training.requested.add(order.request)
        return SaveState(signalled=ranks, saved=next(iter(self._saved(job)), None))

    def ensure_dumped(self, order: DumpOrder) -> DumpState:
        """Ranks of this cluster keep no snapshots."""
        self._owned(order.job, order.generation)
        return DumpState(done=True)

    def _saved(self, job: Job) -> tuple[Checkpoint, ...]:
        processes.save(self.state, job)
        return self.state.storage.newest_first(job.checkpoints_path, job.checkpoints_of)

    def _newest_saved(self, job: Job) -> Checkpoint | None:
        """The newest whole checkpoint."""
        processes.save(self.state, job)
        ever_saved = self.state.storage.ever_newest_first(job.checkpoints_path, job.checkpoints_of)
        return next((saved for saved in ever_saved if saved.good), None)

    def leftovers(self) -> tuple[Leftover, ...]:
        owners = self.state.storage.owners()
        return tuple(
            Leftover(job=JobRef(id=job.id, run=job.newest_run))
            for job in self.state.jobs.values()
            if job.pods or job.leaving or job.standbys or job.waiting or job.id in owners
        )

    # --- generations ----------------------------------------------------------------------------

    def ensure_generation(
        self, job: JobRef, key: str, *, folders: Mapping[str, str] = NO_FOLDERS, above: int = 0
    ) -> int:
        job_state = self.state.job(job.id)
        ownership.refuse_unknown(job_state, above)
        self.state.storage.claim(job.id, folders)
        before = job_state.generations.get((job.run, key))
        generation = ownership.generation_for(job_state, before, above=above)
        if generation != before:
            job_state.newest, job_state.newest_run = generation, job.run
            job_state.generations[job.run, key] = generation
            job_state.waiting = None  # of an older generation
            job_state.prechecks.clear()
            self.state.touch(job_state)
            self.state.capacity_changed()
        job_state.holds_clock = True
        return generation

    def ensure_adopted(
        self, job: JobRef, *, generation: int, folders: Mapping[str, str] = NO_FOLDERS
    ) -> str:
        job_state = self.state.job(job.id)
        if job.books not in ("", self.state.books) or generation > job_state.newest:
            newest = max(job_state.newest, generation, self.state.storage.newest_fence(folders))
            job_state.newest, job_state.newest_run, job_state.may_have_unknown_pods = (
                newest,
                job.run,
                True,
            )
            job_state.adopted = generation
            self.state.touch(job_state)
        return self.state.books if job_state.adopted == generation else ""

    def _owned(self, job: JobRef, generation: int) -> Job:
        """The job, if the order's generation still owns it."""
        job_state = self.state.job(job.id)
        ownership.refuse_other(job_state, generation)
        return job_state

    # --- stopping and healing -------------------------------------------------------------------

    def ensure_stopped(self, order: StopOrder) -> StopState:
        job = self._owned(order.job, order.generation)
        slots = sorted(job.pods) if order.slots is None else sorted(order.slots)
        keep = frozenset(order.keep)
        is_stopped = {slot: self._is_stopped(job, slot, order, keep) for slot in slots}
        stopped = tuple([slot for slot, is_done in is_stopped.items() if is_done])
        kept_ranks = tuple(sorted(_kept_ranks(job, stopped, order.generation)) if keep else ())
        completed = None if job.training is None else job.training.step_at(self.state.now)
        return StopState(
            stopped=stopped,
            pending=tuple([slot for slot, is_done in is_stopped.items() if not is_done]),
            kept_ranks=kept_ranks,
            positions=tuple([RankPosition(rank, completed) for rank in kept_ranks if order.hold_s]),
            evidence=f"fake://{job.id}/g{order.generation}/evidence" if order.evidence else None,
        )

    def _is_stopped(self, job: Job, slot: int, order: StopOrder, keep: frozenset[int]) -> bool:
        pod = job.pods.get(slot)
        if pod is None or not pod.node.answers:
            return pod is None or pods.is_proven_stopped(pod)
        current = pod.processes
        if current is None or (
            current.generation == order.generation and current.older.keys() <= keep
        ):
            return True
        return processes.stop(self.state, pod, order.generation, grace_s=order.grace_s, keep=keep)

    def ensure_healed(self, job: JobRef, *, generation: int, node: str, device: int) -> HealState:
        self._owned(job, generation)
        return health.heal(self.state, node, device)

    # --- placing --------------------------------------------------------------------------------

    def ensure_placed(self, order: PlaceOrder) -> PlaceState:
        job = self._owned(order.job, order.generation)
        ownership.refuse_ended(job, order.generation)
        return placing.take_order(self.state, job, order)

    def ensure_standby(self, order: PlaceOrder) -> PlaceState:
        job = self._owned(order.job, order.generation)
        ownership.refuse_ended(job, order.generation)
        return placing.ensure_standbys(self.state, job, order)

    def ensure_prechecked(self, order: PrecheckOrder) -> PrecheckState:
        job = self._owned(order.job, order.generation)
        results = [self._precheck(job, slot, order.generation) for slot in sorted(order.slots)]
        return PrecheckState(
            done=all(failures is not None for failures in results),
            failures=tuple(fact for failures in results for fact in failures or ()),
        )

    def _precheck(self, job: Job, slot: int, generation: int) -> tuple[Fact, ...] | None:
        pod = job.pods.get(slot) or job.standbys.get(slot)
        if pod is None or not _can_work(pod):
            return None
        return health.check_environment(self.state, pod, generation).failures

    def ensure_prewarmed(self, job: JobRef, *, spares: tuple[int, ...]) -> None:
        """Nothing is imported here."""

    def ensure_isolated(self, node: str, *, reason: str) -> None:
        if node not in self.state.isolated:
            self.state.note(f"isolate {node}")
        self.state.isolated[node] = reason

    def ensure_released(self, node: str) -> None:
        if self.state.isolated.pop(node, None) is not None:
            self.state.note(f"release {node}")
            self.state.capacity_changed()

    # --- starting -------------------------------------------------------------------------------

    def ensure_fenced(self, order: FenceOrder) -> FenceState:
        return fence.ensure(self.state, self._owned(order.job, order.generation), order)

    def ensure_started(self, order: StartOrder) -> StartState:
        job = self._owned(order.job, order.generation)
        unnamed = [pod for n, pod in job.standbys.items() if n not in order.spares]
        pods.remove(self.state, unnamed)
        job.lacks_standby = False
        job_pods = {slot: job.pods.get(slot) for slot in sorted(order.slots)}
        pending = {
            slot: pod
            for slot, pod in job_pods.items()
            if pod is None or not cluster_views.has_started(pod, order.generation)
        }
        to_start = [pod for pod in pending.values() if pod and _can_work(pod)]
        processes.start(self.state, job, to_start, order)
        return StartState(
            started=tuple([slot for slot in job_pods if slot not in pending]),
            pending=tuple(pending),
            failed=cluster_views.not_started(job, pending, order.generation),
        )

    # --- ending ---------------------------------------------------------------------------------

    def ensure_recorded(self, job: JobRef, entries: tuple[Entry, ...]) -> None:
        unwritable = self.state.job(job.id).unwritable
        if unwritable is not None:
            raise BackendUnavailable(unwritable.message)
        self.state.storage.record(job.id, entries)

    def ensure_gone(self, job: JobRef, *, grace_s: float = 0.0) -> GoneState:
        job_state = self.state.job(job.id)
        newest = max(
            (n for (run, _), n in job_state.generations.items() if run == job.run), default=None
        )
        ownership.refuse_late_end(job_state, job.run, newest)
        job_state.closed = job_state.newest
        job_state.waiting = None
        job_state.lacks_standby = False
        pods.remove(
            self.state,
            [
                *(pod for pod in job_state.pods.values() if self._has_stopped(pod, grace_s)),
                *job_state.standbys.values(),
            ],
        )
        left = [*job_state.pods.values(), *job_state.leaving]
        if left:
            wait = WaitKind.POD_GONE.of(f"{left[0].name} on {left[0].node.name}")
            return GoneState(done=False, wait=wait)
        saved = self._newest_saved(job_state) if grace_s > 0 else None
        self._forget(job_state)
        return GoneState(done=True, saved=saved)

    def _has_stopped(self, pod: Pod, grace_s: float) -> bool:
        """Whether the pod may be removed: its processes got their grace."""
        needs_grace = grace_s > 0 and _can_work(pod)
        return not needs_grace or processes.stop(self.state, pod, pod.job.newest, grace_s=grace_s)

    def _forget(self, job: Job) -> None:
        """Drop what an ended job held, but for generations and the version, which only grow."""
        processes.save(self.state, job)
        job.facts.clear()
        job.holds_clock = False
        job.training = None
        job.trainings = []
        job.placement = job.fence = None
        self.state.storage.let_go(job.id)
        self.state.capacity_changed()


def _facts_after(job: Job, version: int) -> tuple[Fact, ...]:
    # From the newest back: of thousands of facts usually none is new.
    newest_first = takewhile(lambda row: row[0] > version, reversed(job.facts))
    return tuple(fact for _, fact in newest_first)[::-1]


def _kept_ranks(job: Job, slots: Iterable[int], generation: int) -> Iterator[int]:
    """The ranks that go on there in this generation."""
    for current in (job.pods[slot].processes for slot in slots if slot in job.pods):
        if current is not None and current.generation == generation and not current.is_ended:
            yield from current.older


def _require_agent(job: Job, *, stopped: int | None = None) -> None:
    """Raise NoAgentAvailable where no agent answers, or none whose ranks of this generation are `stopped`."""
    why = "its pods are not there yet, or not there any more"
    for pod in filter(_can_work, job.pods.values()):
        current = pod.processes
        if stopped is None or current is None or current.generation < stopped:
            return
        if current.is_ended or len(current.older) == current.count:  # or the stop has kept them all
            return
        why = f"ranks of generation {current.generation} may run"
    raise NoAgentAvailable(f"no agent of the job answers: {why}")


def _can_work(pod: Pod) -> bool:
    return pod.is_ready and not pod.is_lost and pod.node.answers
