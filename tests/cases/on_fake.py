"""Plays a case without Temporal: the simulation on a fake cluster, in virtual time."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from everstep.agent.storage import journal as storage
from everstep.backends.agents.commands.storage import journal_commands
from everstep.backends.fake.settings import FakeSettings
from everstep.chronicle import happenings, views
from everstep.chronicle.chronicle import Entry
from everstep.core.spec import CHECKS_NUMBERS, JobSpec
from everstep.core.world import JobRef, StartOrder, StartState
from everstep.dialects import journals, responses
from everstep.dialects.command_files import command_files
from everstep.dialects.modelarts import view as modelarts_view
from everstep.dialects.registry import compile_document
from everstep.documents.merge import merged
from tests.cases.case import RUNS, SLOTS, Case, Deed
from tests.cases.results import CaseResult, Directory, Start, directories
from tests.support.patience import HUNG_S
from tests.support.playing.simulated import Interruptible, PromptBackend

JOB = "case"
DEVICES = 8
SCRIPT = {"STEPS": "1000000", "STEP_S": "1000000", "CHECKPOINT_EVERY": "0", "SHOW_STEPS": "0"}
"""It runs until a test says otherwise, and its steps are invisible."""


class Cluster(PromptBackend):
    """A fake cluster that records the start arguments of every script."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: dict[int, list[Start]] = {}

    async def ensure_started(self, order: StartOrder) -> StartState:
        pods = self.cluster.state.job(order.job.id).pods
        for slot, slot_order in order.slots.items():
            start = Start(
                generation=order.generation,
                schedule=slot_order.schedule_count,
                process=slot_order.process_start_count,
                pod=pods[slot].uid if slot in pods else "none",
                nodes=len(order.slots),
                resumed=None if order.resume is None else order.resume.step,
                checks=order.env.get(CHECKS_NUMBERS),
                params="".join(command_files(order).values()),
            )
            starts = self.starts.setdefault(slot, [])
            if not starts or starts[-1].generation < order.generation:
                starts.append(start)
        return await super().ensure_started(order)


def document(
    case: Case, *, command: str, variables: Mapping[str, str], folder: str
) -> dict[str, Any]:
    """The case's document, with a script that takes commands and saves to this folder."""
    if case.trainer is not None:
        spec = {
            "command": f"{command} {{params}}",
            "env": {**case.variables, **variables},
            **case.overlay,
        }
        init_config = {"init": {"model_dir": folder}}
        if isinstance(case.trainer, tuple):
            return {"trainer": [merged(one, init_config) for one in case.trainer], "everstep": spec}
        return {"trainer": merged(case.trainer, init_config), "everstep": spec}
    if case.labels is not None:
        return _ascend_job(
            case, command=command, variables={**case.variables, **variables}, folder=folder
        )
    auto_stop = None if case.auto_stop_h is None else {"duration": case.auto_stop_h}
    return {
        "kind": "job",
        "metadata": {"name": JOB, "annotations": dict(case.annotations)},
        "algorithm": {"command": command, "environments": {**case.variables, **variables}},
        "spec": {"resource": {"node_count": SLOTS}, "auto_stop": auto_stop},
        "everstep": {"checkpoints": {"path": folder}, **case.overlay},
    }


def _ascend_job(
    case: Case, *, command: str, variables: Mapping[str, str], folder: str
) -> dict[str, Any]:
    """An AscendJob of a Master and Workers, each with all devices of a node."""
    container = {
        "name": "ascend",
        "command": ["/bin/sh", "-c"],
        "args": [command],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"limits": {"huawei.com/Ascend910": DEVICES}},
    }
    role = {"restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {
            "name": JOB,
            "labels": dict(case.labels or {}),
            "annotations": dict(case.annotations),
        },
        "spec": {
            "runPolicy": {"backoffLimit": case.backoff_limit},
            "replicaSpecs": {
                "Master": {**role, "replicas": 1},
                "Worker": {**role, "replicas": SLOTS - 1},
            },
        },
        "everstep": {"checkpoints": {"path": folder}, **case.overlay},
    }


async def play(case: Case) -> CaseResult:
    backend = Cluster()
    backend.build(FakeSettings(nodes=case.nodes, devices=DEVICES))
    for line in case.before:
        await backend.admin.fault(line)
    written = document(case, command="train", variables={**SCRIPT, **case.fake}, folder="ckpt")
    simulation = Interruptible(
        backend=backend, spec=compile_document(written), job=JobRef(id=JOB, run="run")
    )
    if case.stale is not None:
        backend.cluster.state.storage.save("ckpt", [(case.stale, 1.0)])
    for number, deed in enumerate(case.deeds, start=1):
        at_s = RUNS * number if deed.at_s is None else deed.at_s
        for line in _lines(deed, ranks=case.ranks(deed.start)):
            await backend.admin.fault(f"at {at_s:g}s {line}")
    await asyncio.wait_for(simulation.run(), HUNG_S)
    state, chronicle = simulation.state, simulation.chronicle
    effects = [effect.what for effect in await backend.admin.effects()]
    assert not [what for what in effects if what.startswith("could not")], effects
    return CaseResult(
        report=responses.report(state, chronicle),
        status=views.status(state),
        records=tuple(responses.restarts(chronicle)),
        starts={slot: tuple(starts) for slot, starts in backend.starts.items()},
        isolated=tuple(sorted(node.name for node in await backend.nodes() if node.isolated)),
        prechecked=any(what.startswith("check ") for what in effects),
        modelarts_view=modelarts_view.details(state, chronicle),
        events=names(happenings.events(chronicle)),
        log=tuple(entry.text for entry in chronicle.entries),
        directories=_directories(state.spec, chronicle.entries),
    )


def _directories(spec: JobSpec, entries: tuple[Entry, ...]) -> tuple[Directory, ...]:
    """What an agent would have written."""
    with tempfile.TemporaryDirectory() as root:
        entries = tuple(replace(entry, model_dir=root, workdir=None) for entry in entries)
        for command in journal_commands(JOB, journals.formatted(spec, entries)):
            storage.write(command)
        return directories(Path(root))


def names(events: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The events that are reported to others."""
    return tuple(event["event"] for event in events if event["event"] is not None)


def _lines(deed: Deed, *, ranks: int) -> list[str]:
    """The deed as a line of the fake cluster; commands for real processes only are left out."""
    match deed.what.split():
        case ["exit", rank, code, *exception]:
            options = [f"exception={name}" for name in exception]
            return [" ".join(("kill", JOB, rank, "exit", code, *options))]
        case ["end"]:
            return [f"kill {JOB} {rank} exit 0" for rank in range(ranks)]
        case ["still"]:
            return [f"hang {JOB} {rank}" for rank in range(ranks)]
        case ["validate"]:
            return [f"hang {JOB} {rank} io" for rank in range(ranks)]
        case ["save" | "saved", step]:
            return [f"save {JOB} {step}"]
        case ["window"] | ["long"] | ["log", _]:
            return []
        case _:
            return [line.replace("JOB", JOB) for line in deed.what.split("; ")]
