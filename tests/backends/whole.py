"""A whole job on any backend, from its launch to its end, without Temporal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from everstep.core.spec import JobSpec, Policy
from everstep.core.world import JobRef
from everstep.dialects import responses
from everstep.simulation import Simulation
from tests.backends.lab import Lab
from tests.support.builders import job_spec


def whole_job(
    lab: Lab,
    policy: Policy,
    *,
    name: str = "demo",
    command: tuple[str, ...] | None = None,
    **phase: Any,
) -> Simulation:
    """All devices of its nodes; the lab's trainer, and two steps, unless overridden."""
    folder = f"{lab.storage}/{name}"
    spec_options: dict[str, Any] = {
        "env": {"STEPS": "2"},
        "accelerator": "simulated",
        "accelerators_per_node": "all",
        "model_dir": folder,
        "checkpoints_path": f"{folder}/checkpoints",
        **phase,
    }
    spec = _with_command(job_spec(policy, **spec_options), command or lab.command)
    ref = JobRef(id=name, run="run-1")
    return Simulation(backend=lab.backend, spec=replace(spec, name=name), job=ref)


def _with_command(spec: JobSpec, command: tuple[str, ...]) -> JobSpec:
    return replace(spec, phases=tuple(replace(phase, command=command) for phase in spec.phases))


def report(job: Simulation) -> Mapping[str, Any]:
    return responses.report(job.state, job.chronicle)


def restarts(job: Simulation) -> list[dict[str, Any]]:
    return list(responses.restarts(job.chronicle))
