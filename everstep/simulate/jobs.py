"""A document as a job of the simulation: its policy and limits as they are, its work as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from everstep.core.spec import JobSpec, PhaseSpec

Library = Literal["none", "snapshots", "levels"]
"""What the script uses of the train library: nothing, snapshots in memory, or those and ranks that outlive
faults."""
LIBRARIES: tuple[Library, ...] = get_args(Library)
CAN: Mapping[Library, str] = {"none": "0", "snapshots": "restore,snapshot", "levels": "1"}
"""What its ranks declare, as the fake cluster reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNumbers:
    """What a simulation needs of a job beside its document."""

    step_s: float = 5.0
    checkpoint_s: float = 300.0  # of training between two checkpoints
    write_s: float = 0.5  # for which training stands still at each
    start_s: float = 30.0  # until all ranks have started and found each other
    load_s: float = 30.0  # until the first step: the checkpoint is read
    pod_s: float = 120.0  # a new pod: image and placement
    heal_s: float = 10.0  # a device repairs itself
    steps: int = 10**9  # after which it is done
    library: Library = "none"
    snapshot_every_s: float = 30.0  # of training between two snapshots
    snapshot_s: float = 0.1  # for which training stands still at each
    restore_s: float = 5.0  # until the first step: snapshots are read, or come from a neighbour
    rebuild_s: float = 10.0  # the same of ranks that outlive a fault: their group is formed again

    @property
    def steps_between(self) -> int:
        """Steps from one checkpoint to the next."""
        return max(round(self.checkpoint_s / self.step_s), 1)

    @property
    def steps_between_snapshots(self) -> int:
        """Steps from one snapshot to the next; 0: there are none."""
        keeps_any = self.library != "none"
        return max(round(self.snapshot_every_s / self.step_s), 1) if keeps_any else 0

    @property
    def snapshots_s(self) -> float:
        """How long training stands still for snapshots from one checkpoint to the next."""
        apart = self.steps_between_snapshots
        return self.snapshot_s * self.steps_between / apart if apart else 0.0

    @property
    def interval_s(self) -> float:
        """From the begin of one checkpoint to that of the next."""
        return self.checkpoint_s + self.write_s + self.snapshots_s

    @property
    def write_share(self) -> float:
        """The share of the time of training that writes of checkpoints take."""
        return self.write_s / self.interval_s

    @property
    def snapshot_share(self) -> float:
        """The share that snapshots take."""
        return self.snapshots_s / self.interval_s


def as_simulated(spec: JobSpec, numbers: JobNumbers, *, nodes: int | None) -> JobSpec:
    """The job with its last phase alone, of which nothing but its policy and its limits is the document's."""
    phase = spec.phases[-1]
    nodes = nodes or phase.nodes
    return replace(
        spec,
        phases=(_phase(phase, spec.name, numbers, nodes),),
        start_phase=None,
        priority=spec.priority,
    )


def _phase(phase: PhaseSpec, name: str, numbers: JobNumbers, nodes: int) -> PhaseSpec:
    every = numbers.steps_between
    step_s = numbers.interval_s / every
    env = {
        "STEPS": str(numbers.steps),
        "STEP_S": repr(step_s),
        "CHECKPOINT_EVERY": str(every),
        "START_S": str(numbers.start_s),
        "WARMUP_S": repr(numbers.load_s + step_s),
        "LIBRARY": CAN[numbers.library],
        "SNAPSHOT_EVERY": str(numbers.steps_between_snapshots),
        "RESTORE_S": repr(numbers.restore_s + step_s),
        "REBUILD_S": repr(numbers.rebuild_s + step_s),
    }
    is_elastic = phase.nodes_min < phase.nodes
    least = max(round(nodes * phase.nodes_min / phase.nodes), 1) if is_elastic else nodes
    return replace(
        phase,
        command=phase.command or ("train",),
        env=env,
        env_from={},
        nodes=nodes,
        nodes_min=least,
        first_nodes_min=None,
        processes_per_node=1,
        accelerators_per_node="all",
        accelerator="simulated",
        model_dir=f"simulated/{name}",
        checkpoints_path=f"simulated/{name}/checkpoints",
        prefetch=None,
        last_step=None,
        limits=replace(phase.limits, run_s=None),
    )
