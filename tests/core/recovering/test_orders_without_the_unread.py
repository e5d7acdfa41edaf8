"""Each step gets of its plan's phase what it reads; the history keeps no copy of the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everstep.backends.fake.backend import FakeBackend
from everstep.backends.fake.settings import FakeSettings
from everstep.converter import DATA_CONVERTER
from everstep.core.deciding.decision import Outcome, Plan, StepOrder
from everstep.core.levels import FaultClass, Step
from everstep.core.recovering import recovery
from everstep.core.recovering.plans import launch_plan
from everstep.core.spec import PhaseSpec, Prefetch
from everstep.core.state import JobState
from everstep.core.world import JobRef
from everstep.simulation import QuarantineInMemory
from everstep.steps.perform import perform
from everstep.steps.step_run import StepContext
from tests.support.builders import job_spec, running, sighting

RICH: dict[str, Any] = {
    "command": ("python", "-m", "train", "--params", "{params}"),
    "env": {f"NCCL_{n}": "value" for n in range(40)},
    "env_from": {"TOKEN": "HOME"},
    "image": "registry/train:7",
    "pod_template": {"spec": {"volumes": [{"name": f"v{n}", "emptyDir": {}} for n in range(200)]}},
    "log_pattern": r"step (\d+)",
    "prewarm": ("torch",),
    "prefetch": Prefetch(command=("compile",)),
    "files": {"params.yaml": {f"key{n}": n for n in range(500)}},
    "called": {"model_dir": "outputDir"},
}


class Recording(FakeBackend):
    """Writes down what it is ordered."""

    def __init__(self) -> None:
        super().__init__()
        self.build(FakeSettings(nodes=6, devices=8))
        self.orders: list[tuple[str, Any]] = []

    async def call(self, verb: str, /, **args: Any) -> Any:
        if "order" in args:
            self.orders.append((verb, args["order"]))
        return await super().call(verb, **args)


def rich(plan: Plan) -> Plan:
    return replace(plan, phase=replace(plan.phase, **RICH))


async def orders_to_the_cluster(plan: Plan, *, are_whole: bool) -> list[tuple[str, Any]]:
    """What the steps of the plan order; `are_whole`: each of them has all of the plan."""
    backend = Recording()
    context = StepContext(backend=backend, quarantine=QuarantineInMemory())
    progress = recovery.begin(plan)
    while not isinstance(order := recovery.next_step(progress), Outcome):
        if are_whole:
            order = replace(order, plan=plan)
        following = recovery.after(progress, await perform(context, order))
        if isinstance(following, Outcome):
            return [*backend.orders, ("end", following.result)]
        progress = following
    return [*backend.orders, ("end", order.result)]


async def test_what_steps_do_not_get_changes_nothing_of_what_they_order() -> None:
    plan = rich(launch_plan(JobState(job=JobRef(id="job", run="run"), spec=job_spec())))
    whole = await orders_to_the_cluster(plan, are_whole=True)
    assert await orders_to_the_cluster(plan, are_whole=False) == whole
    assert {"ensure_placed", "ensure_fenced", "ensure_started"} <= {verb for verb, _ in whole}
    assert whole[-1] == ("end", "success")


def test_what_may_be_large_of_a_document_is_in_one_order_of_a_restart_each() -> None:
    job = running()
    job.see(sighting(FaultClass.NODE))
    progress = recovery.begin(rich(job.plan))
    texts: dict[Step, str] = {}
    while isinstance(order := recovery.next_step(progress), StepOrder):
        texts[order.step] = DATA_CONVERTER.payload_converter.to_payload(order).data.decode()
        progress = replace(progress, index=progress.index + 1)
    for text, readers in (
        ("key499", {Step.START}),
        ("emptyDir", {Step.PLACE}),
        ("NCCL_7", {Step.START}),
    ):
        assert {step for step, order in texts.items() if text in order} == readers
    rest = [text for step, text in texts.items() if step not in {Step.START, Step.PLACE}]
    assert max(map(len, rest)) < 4 * 1024


def test_every_field_that_steps_do_not_get_is_one_of_the_phase() -> None:
    nothing = PhaseSpec(name="", command=())
    assert {name: value for name, (value, _) in recovery.READERS.items()} == {
        name: getattr(nothing, name) for name in recovery.READERS
    }
