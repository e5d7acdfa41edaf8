"""Every verb of a backend as a call on a job, and the settings of jobs of these tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from everstep.chronicle.chronicle import Entry
from tests.backends.lab import Run

NEVER_ENDS = {"STEPS": "100000"}

ORDERS: dict[str, Callable[[Run], Awaitable[Any]]] = {
    "ensure_stopped": lambda job: job.backend.ensure_stopped(job.stop_order()),
    "ensure_healed": lambda job: job.backend.ensure_healed(
        job.ref, generation=job.generation, node="n0", device=0
    ),
    "ensure_placed": lambda job: job.backend.ensure_placed(job.place_order()),
    "ensure_standby": lambda job: job.backend.ensure_standby(job.place_order(recreate=(1,))),
    "ensure_prechecked": lambda job: job.backend.ensure_prechecked(job.precheck_order()),
    "ensure_fenced": lambda job: job.backend.ensure_fenced(job.fence_order()),
    "ensure_set_aside": lambda job: job.backend.ensure_set_aside(job.set_aside_order()),
    "ensure_save_requested": lambda job: job.backend.ensure_save_requested(job.save_order()),
    "ensure_started": lambda job: job.backend.ensure_started(job.start_order()),
}

VERBS: dict[str, Callable[[Run], Awaitable[Any]]] = {
    **ORDERS,
    "clock": lambda job: job.backend.clock(),
    "nodes": lambda job: job.backend.nodes(),
    "ensure_generation": lambda job: job.backend.ensure_generation(job.ref, "another"),
    "observe": lambda job: job.backend.observe(job.ref, cursor=""),
    "check": lambda job: job.backend.check(job.ref),
    "check_storage": lambda job: job.backend.check_storage(job.ref),
    "checkpoints": lambda job: job.backend.checkpoints(job.ref),
    "ensure_isolated": lambda job: job.backend.ensure_isolated("n4", reason="broken"),
    "ensure_released": lambda job: job.backend.ensure_released("n4"),
    "ensure_recorded": lambda job: job.backend.ensure_recorded(job.ref, ()),
    "ensure_gone": lambda job: job.backend.ensure_gone(job.ref),
    "leftovers": lambda job: job.backend.leftovers(),
}


def entries(job: Run, *numbers: int) -> tuple[Entry, ...]:
    line = Entry(phase="main", model_dir=job.model_dir, began=1_000.0, at=1_000.0, run=1, text="")
    return tuple(replace(line, number=n, at=1_000.0 + n, text=f"line {n}") for n in numbers)
