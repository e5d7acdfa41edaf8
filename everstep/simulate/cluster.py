"""The fake cluster of a simulation: without looks while training only goes on, and with times of waits.

A watch looks again and again at a job without news, to see that its steps go on. Here that is known: such a
look is put off until something happens, so that a quiet week costs a few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import EPOCH, FakeSettings
from everstep.backends.fake.simulated.model import Job
from everstep.backends.fake.simulated.state import FakeState
from everstep.backends.fake.simulated.training import Training
from everstep.core.world import JobRef

QUIET_S = 3_600.0
"""A look at a job that trains is put off for so long at most."""

NEVER_S = 1e6
"""Real seconds: no wait ends by them, or the same seed would not have the same results on a busy machine."""


class SimulatedCluster(FakeBackend):
    """Nodes n0, n1, ... with one device each, which stands for all of a node."""

    def __init__(self, *, nodes: int, pod_s: float, heal_s: float) -> None:
        self.trainings: dict[str, list[Training]] = {}
        self.waits: list[tuple[str, float, float]] = []  # of a job for places: since, until
        self._waiting: dict[str, tuple[int, float]] = {}  # by job: generation, since
        super().__init__(
            FakeSettings(
                nodes=nodes,
                devices=1,
                pod_s=pod_s,
                heal_s=heal_s,
                precheck_s=10.0,
                idle_s=float("inf"),
                keeps_effects=False,
            )
        )

    @property
    def state(self) -> FakeState:
        return self.cluster.state

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return self.state.now - EPOCH

    def hold(self, job_id: str) -> None:
        """Let the clock wait for this job, which is about to begin."""
        self.state.job(job_id).holds_clock = True
        self.holders.note_call(job_id)

    def let_go(self, job_id: str) -> None:
        """Let the clock go on without this job, which has ended."""
        self.state.job(job_id).holds_clock = False

    def note_steps(self, job: Job) -> None:
        """Note a training whose steps begin."""
        assert job.training is not None
        self.trainings.setdefault(job.id, []).append(job.training)

    async def _observe(
        self, job: JobRef, cursor: str, until: float | None = None, wait_s: float = 1.0
    ) -> object:
        if until is not None and until > self.state.now and self._is_quiet(job.id):
            until = max(until, self.state.now + QUIET_S)
        return await super()._observe(job, cursor, until, max(wait_s, NEVER_S))

    def _is_quiet(self, job_id: str) -> bool:
        """Whether all processes of the job step, and all their agents answer."""
        job = self.state.jobs.get(job_id)
        if job is None or job.training is None or not job.training.is_stepping:
            return False
        return all(pod.node.answers for pod in job.pods.values())

    def _order(self, verb: str, args: Mapping[str, Any]) -> object:
        if verb == "ensure_gone":  # the job is no more, but a person may submit it again
            gone_state = self.cluster.ensure_gone(**args)
            if (waiting := self._waiting.pop(args["job"].id, None)) is not None:
                self.waits.append((args["job"].id, waiting[1], self.now_s))
            self.hold(args["job"].id)
            self.holders.let_time_pass()
            return gone_state
        result = super()._order(verb, args)
        if verb == "ensure_placed":
            self._note_place(args["order"].job.id, args["order"].generation)
        return result

    def _note_place(self, job_id: str, generation: int) -> None:
        """Note since when the job has waited for this place, or that it has it."""
        now_s, placement = self.now_s, self.state.jobs[job_id].placement
        before, since = self._waiting.pop(job_id, (generation, now_s))
        if before != generation:  # a newer order took its turn
            self.waits.append((job_id, since, now_s))
            since = now_s
        if placement is None or placement.generation != generation:
            self._waiting[job_id] = (generation, since)
        elif now_s > since:
            self.waits.append((job_id, since, now_s))

    def end_waits(self) -> None:
        """Note the waits that go on at the end."""
        self.waits += [(job, since, self.now_s) for job, (_, since) in self._waiting.items()]
