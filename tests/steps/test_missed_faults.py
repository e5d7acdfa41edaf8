"""Device faults of a job whose quarantine does not answer reach it with a later fault of that job."""

from __future__ import annotations

import pytest

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.core.loop.next_actions import Action, RunPlan
from everstep.core.state import JobState
from everstep.core.world import JobRef
from everstep.dialects.registry import compile_document
from everstep.simulation import QuarantineInMemory, Simulation
from tests.workflows.test_counted_faults import manifest

CODE = "80C98009"
"""Isolates its device the third time within 24 hours, as every code without a rule of its own."""


def between_two_faults(job: Simulation) -> list[bool]:
    """The quarantine answers from the first restart on; whether it had counted anything before each."""
    had_counted: list[bool] = []

    def note(_: JobState, action: Action) -> None:
        if isinstance(action, RunPlan) and action.plan.n:
            had_counted.append(bool(job.quarantine.quarantines))
            job.quarantine.is_reachable = True

    job.on_action = note
    return had_counted


@pytest.mark.parametrize("is_missed", [False, True])
async def test_a_missed_fault_counts_as_of_its_own_time(*, is_missed: bool) -> None:
    backend, quarantine = FakeBackend(), QuarantineInMemory()
    backend.build(FakeSettings(nodes=4, devices=8))
    quarantine.is_reachable = not is_missed
    await backend.admin.fault(f"at 1000s device n1 1 {CODE}")
    await backend.admin.fault("at 5000s clear n1 1")
    await backend.admin.fault(f"at 9000s device n1 1 {CODE}")
    first = Simulation(
        backend=backend,
        spec=compile_document(manifest("first")),
        job=JobRef(id="first", run="r1"),
        quarantine=quarantine,
    )
    had_counted = between_two_faults(first)
    assert (await first.run()).status == "Completed"
    assert had_counted == [not is_missed, True]
    book = quarantine.quarantines["local"]
    assert [(f.node, f.device, f.code, f.times) for f in book.faults] == [
        ("n1", 1, CODE, 1),
        ("n1", 1, CODE, 2),
    ]
    assert book.faults[1].counts_at - book.faults[0].counts_at == pytest.approx(8_000.0, abs=5.0)
    assert not book.nodes
