"""Small experiments for tests of simulations."""

from __future__ import annotations

from typing import Any

from everstep.dialects.registry import compile_document
from everstep.simulate.experiment import Experiment
from everstep.simulate.fault_classes import Effect, FaultClassRow, Lasting, Profile
from everstep.simulate.jobs import JobNumbers
from tests.support.stage import document

CURED = FaultClassRow(
    name="net_flap",
    effect=Effect.LINK,
    share=1.0,
    detect_s=0.0,
    cured=1.0,
    repair=Lasting(median_s=1.0),
    source="made up",
)
"""Faults that a restart in place cures, at once."""


def profile(*rows: FaultClassRow, rate: float) -> Profile:
    """Nothing but these faults, on all nodes alike."""
    return Profile(
        name="made up",
        rate=rate,
        false_rate=0.0,
        together=0.0,
        bursts_sigma=0.0,
        rows=rows,
        source="made up",
    )


def experiment(nodes: int = 8, **fields: Any) -> Experiment:
    """A small job on a cluster without spares, unless `fields` say otherwise. `spec` is of its document."""
    spec = compile_document(document(nodes=nodes, **fields.pop("spec", {})))
    return Experiment(jobs=(spec,), **{"spares": 0, "numbers": JobNumbers(), **fields})
