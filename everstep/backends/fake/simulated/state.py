"""The state that the parts of a fake cluster share, and the ways to report a change of it.

There is a method for a fact, for a change without a fact, and for a line of the effects log. Everything that
the cluster does to itself goes through here, so that no observer misses a change.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from everstep.backends.fake.settings import EPOCH, FakeSettings
from everstep.backends.fake.simulated.model import Device, Job, Node, Pod
from everstep.backends.fake.simulated.shared_storage import Storage
from everstep.backends.fake.simulated.timeline import Callback, Timeline
from everstep.core.facts import Detail, Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Something an order changed in the world, `at` seconds after the cluster began."""

    at: float
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedStep:
    """Something that happens once, when the job has completed a step."""

    job: str
    step: int
    do: Callback


class FakeState:
    """Everything there is."""

    def __init__(self, settings: FakeSettings) -> None:
        self.settings = settings
        self.books = secrets.token_hex(3)
        self.time = Timeline()
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, Job] = {}
        self.isolated: dict[str, str] = {}  # node -> reason, known or not
        self.storage = Storage()
        self._effects: list[str] = []
        self._effects_at: list[float] = []  # of each of them
        self.awaited: list[AwaitedStep] = []
        self.capacity_changed: Callback = lambda: None  # the queue of waiting jobs puts itself here
        self.steps_began: Callable[[Job], None] = lambda _job: None  # a simulation puts itself here
        self.queue_count = 0  # jobs that ever waited for places
        self._sightings: Counter[str] = Counter()
        for number in range(settings.nodes):
            self.add_node(f"n{number}")

    @property
    def now(self) -> float:
        return self.time.now

    def add_node(self, name: str) -> None:
        devices = tuple(Device(index=index) for index in range(self.settings.devices))
        self.nodes[name] = Node(name=name, devices=devices, slots=self.settings.slots)

    def job(self, job_id: str) -> Job:
        return self.jobs.setdefault(job_id, Job(id=job_id))

    def jobs_on(self, node: Node) -> Iterator[tuple[Job, Pod]]:
        """The jobs that live on the node, each with its pod there."""
        return ((pod.job, pod) for pod in node.pods if pod.job.pods.get(pod.slot) is pod)

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What orders really changed, oldest first."""
        pairs = zip(self._effects_at, self._effects, strict=True)
        return tuple(Effect(at=round(at - EPOCH, 6), what=what) for at, what in pairs)

    # --- notes and facts ----------------------------------------------------------------------

    def note(self, what: str) -> None:
        if not self.settings.keeps_effects:
            return
        self._effects.append(what)
        self._effects_at.append(self.time.now)

    def touch(self, job: Job) -> None:
        """Mark the job as changed: its next observation is due."""
        job.version += 1

    def report(self, job: Job, fact: Fact, *, through: Node | None = None) -> None:
        """Report a fact to the job. `through`: by an agent of this node, once the node answers."""
        if through is not None and not through.answers:
            through.unreported.append((job, fact))
            return
        self.touch(job)
        job.facts.append((job.version, fact))

    def new_fact_id(self, source: str, generation: int = 0) -> str:
        """An identity for a new fact of this pod, node or job."""
        scope = f"fake/{source}/{generation}"
        self._sightings[scope] += 1
        return f"{scope}/{self._sightings[scope]}"

    def fact(
        self,
        kind: str,
        *,
        node: str | None = None,
        job: str = "cluster",
        device: int | None = None,
        code: str | None = None,
        message: str = "",
        details: Mapping[str, Detail] | None = None,
    ) -> Fact:
        """A fact about a node, a device or a job, not reported yet."""
        return Fact(
            id=self.new_fact_id(node or job),
            kind=kind,
            at=self.now,
            node=node,
            device=device,
            code=code,
            message=message,
            details=_set_details(details or {}),
        )

    def pod_fact(
        self, pod: Pod, kind: str, *, generation: int, rank: int | None = None, **details: Detail
    ) -> Fact:
        """A fact about a pod or one of its ranks, not reported yet."""
        return Fact(
            id=self.new_fact_id(pod.uid, generation),
            kind=kind,
            at=self.now,
            generation=generation,
            node=pod.node.name,
            slot=pod.slot,
            rank=rank,
            details=_set_details(details),
        )

    def add_node_fact(self, node: Node, fact: Fact, *, device: int | None = None) -> None:
        """Report a fact to every job on the node; one of a device to its holder, by the agent there."""
        for job, pod in self.jobs_on(node):
            if device is None:
                self.report(job, replace(fact, slot=pod.slot))
            elif node.devices[device].pod is pod:
                self.report(job, replace(fact, slot=pod.slot), through=node)


def _set_details(details: Mapping[str, Detail]) -> dict[str, Detail]:
    return {key: value for key, value in details.items() if value is not None}
