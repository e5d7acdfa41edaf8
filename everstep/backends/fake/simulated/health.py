"""Nodes, devices and the checks of pods: what faults may touch here, what heals, what a check finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from everstep.backends.fake.simulated import pods, processes
from everstep.backends.fake.simulated.model import Node, Pod, Precheck
from everstep.backends.fake.simulated.state import FakeState
from everstep.backends.rules import faults
from everstep.core.facts import Fact
from everstep.core.world import HealState


class FakeScene(faults.Scene[Node]):
    """The fake cluster, as far as faults may touch it."""

    def __init__(self, state: FakeState) -> None:
        self.state = state

    @property
    def now(self) -> float:
        return self.state.now

    def nodes(self) -> Mapping[str, Node]:
        return self.state.nodes

    def add_node(self, name: str) -> None:
        self.state.add_node(name)

    def keep(self, node: Node) -> None:
        """Nothing to do: `node` is the stored object itself."""

    def new_fact(self, kind: str, **details: Any) -> Fact:
        return self.state.fact(kind, **details)

    def add_node_fact(self, node: Node, fact: Fact, *, device: int | None = None) -> None:
        self.state.add_node_fact(node, fact, device=device)

    def lose(self, node: Node, *, proven: bool) -> None:
        pods.lose_node(self.state, node, proven=proven)

    def changed(self, node: Node | None) -> None:
        if node is None:
            self.state.capacity_changed()
        else:
            pods.node_changed(self.state, node)

    def end_rehearsals(self, node: Node, device: int | None) -> None:
        if device is None:
            pods.unsilence(self.state, node)
            return
        node.devices[device].end_rehearsal()
        pods.touch_all(self.state, node)

    def job(self, job_id: str) -> str:
        if job_id not in self.state.jobs:
            raise ValueError(f"there is no job {job_id!r}")
        return job_id

    def add_job_fact(self, job: str, fact: Fact) -> None:
        self.state.report(self.state.job(job), fact)

    def unwritable(self, job: str) -> Fact | None:
        return self.state.job(job).unwritable

    def set_unwritable(self, job: str, fact: Fact | None) -> None:
        job_state = self.state.job(job)
        # Checkpoints completed until now were saved before the storage failed.
        processes.save(self.state, job_state)
        job_state.unwritable = fact


def heal(state: FakeState, name: str, index: int) -> HealState:
    """Start healing, or return its state. It ends after its time, without another call."""
    scene = FakeScene(state)
    node, device = scene.device(name, index)
    before = device.heals_at
    answer = faults.heal(scene, node, device, takes_s=state.settings.heal_s)
    if device.heals_at is not None and device.heals_at != before:
        state.note(f"heal {name}/{index}")
        state.time.at(device.heals_at, lambda: _heal_ends(state, name, index))
    return answer


def _heal_ends(state: FakeState, name: str, index: int) -> None:
    scene = FakeScene(state)
    node, device = scene.device(name, index)
    if device.heals_at == state.now:
        faults.end_heal(scene, node, device)
        pods.node_changed(state, node)


# --- checks -------------------------------------------------------------------------------------


def check_environment(state: FakeState, pod: Pod, generation: int) -> Precheck:
    """Begin the checks of a pod, or say how far they are. Once per generation and pod, until it passed."""
    if pod.is_checked:
        return Precheck(failures=())
    key = (generation, pod.uid)
    result = pod.job.prechecks.get(key)
    if result is None:
        result = pod.job.prechecks[key] = Precheck()
        state.note(f"check {pod.name} on {pod.node.name} (g{generation})")
        state.time.after(
            state.settings.precheck_s, lambda: _checked(state, pod, generation, result)
        )
    return result


def _checked(state: FakeState, pod: Pod, generation: int, precheck: Precheck) -> None:
    failing = pod.node.prechecks if pod.node.service == "ready" else {}
    precheck.failures = tuple(
        replace(
            state.pod_fact(pod, f"precheck.{check}", generation=generation, hardware=hardware),
            message=f"{check} failed on {pod.node.name}",
        )
        for check, hardware in failing.items()
    )
    pod.is_checked = not precheck.failures
    state.touch(pod.job)
