"""Faults on demand of the fake cluster: those of all clusters (`rules/faults.py`), and its own.

`parse_fault` reads a line, `inject` carries it out now or at its time. Scenario files, options of the
server and tests use the same lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from everstep.backends.fake.settings import EPOCH
from everstep.backends.fake.simulated import pods, processes
from everstep.backends.fake.simulated.health import FakeScene
from everstep.backends.fake.simulated.model import Job, Pod
from everstep.backends.fake.simulated.state import AwaitedStep, FakeState
from everstep.backends.fault_lines import FaultLine, read_line
from everstep.backends.rules import faults
from everstep.core.facts import Detail
from everstep.faults.meanings import with_meaning
from everstep.protocol.exits import Exit

# --- what they do -------------------------------------------------------------------------------


def metric(scene: FakeScene, fault: FaultLine) -> None:
    """Set the utilisation that a device shows, or let it vary. Raises ValueError above 100."""
    node, ref = scene.device(fault.words[0], fault.number(1))
    device = node.devices[ref.index]
    fault.percent(2)  # only for its check: the line may say `vary`
    node.shows_utilisation = True
    device.varies = fault.words[2] == "vary"
    if fault.words[2] != device.metric:
        device.metric, device.metric_at = fault.words[2], scene.now
    if device.varies:
        device.band.forget()
        device.used_at = scene.now
    elif device.band.add(float(fault.words[2])):
        device.used_at = scene.now
    pods.touch_all(scene.state, node)


def kill(scene: FakeScene, fault: FaultLine) -> None:
    job, rank = _job(scene, fault), fault.number(1)
    code, signal = fault.options.get("exit"), fault.options.get("signal", processes.SIGKILL)
    processes.exit_rank(
        scene.state,
        _pod_of_rank(job, rank),
        rank,
        Exit(signal=int(signal)) if code is None else Exit(code=int(code)),
        exception=fault.options.get("exception"),
        log=fault.options.get("log"),
    )


def hang(scene: FakeScene, fault: FaultLine) -> None:
    job = _job(scene, fault)
    pod = _pod_of_rank(job, fault.number(1))
    options = fault.options
    processes.hang_rank(scene.state, pod, does_io="io" in options, is_idle="idle" in options)


def kill_agent(scene: FakeScene, fault: FaultLine) -> None:
    job, state = _job(scene, fault), scene.state
    pod = job.pods.get(fault.number(1))
    if pod is None:
        raise ValueError(f"{job.id} has no pod in slot {fault.words[1]}")
    if pod.is_lost:
        return
    generation = pod.processes.generation if pod.processes else pod.generation
    pods.lose(state, pod)
    fact = state.pod_fact(pod, "agent.gone", generation=generation)
    state.report(
        job, replace(fact, message=f"the container of {pod.name} is gone"), through=pod.node
    )


def silence(scene: FakeScene, fault: FaultLine) -> None:
    pods.silence(scene.state, scene.node(fault.words[0]))


def unsilence(scene: FakeScene, fault: FaultLine) -> None:
    pods.unsilence(scene.state, scene.node(fault.words[0]))


def checkpoints(scene: FakeScene, fault: FaultLine) -> None:
    """Move the folder of the checkpoints away, or back."""
    path = _checkpoints_path(scene, fault)
    processes.save(scene.state, _job(scene, fault))  # what is complete by now moves too
    moves = {"away": scene.state.storage.move_away, "back": scene.state.storage.move_back}
    if fault.words[1] not in moves:
        raise ValueError("checkpoints are moved away or back")
    moves[fault.words[1]](path)


def _checkpoints_path(scene: FakeScene, fault: FaultLine) -> str:
    job = _job(scene, fault)
    if job.checkpoints_path is None:
        raise ValueError(f"{job.id} has nowhere to save")
    return job.checkpoints_path


def save(scene: FakeScene, fault: FaultLine) -> None:
    """Save a checkpoint of this step now, whatever step the job is at."""
    job, state = _job(scene, fault), scene.state
    state.storage.save(_checkpoints_path(scene, fault), [(fault.number(1), state.now)])
    state.touch(job)


def bad_checkpoint(scene: FakeScene, fault: FaultLine) -> None:
    job, step = _job(scene, fault), fault.number(1)
    state, path = scene.state, job.checkpoints_path
    processes.save(state, job)  # the one of this step may be complete and not stored yet
    hidden = "hidden" in fault.options
    if path is None or not state.storage.spoil(path, step, hidden=hidden):
        raise ValueError(f"{job.id} has no checkpoint of step {step}")
    if not hidden:
        processes.report_bad_checkpoint(state, job, path, step)


def report_fact(scene: FakeScene, fault: FaultLine) -> None:
    """Report a fact of any kind. Options named like a field of `Fact` set it, the others are details."""
    job, state = _job(scene, fault), scene.state
    options = {key: _value(text) for key, text in fault.options.items()}
    fields = {key: options.pop(key) for key in FACT_KEYS & options.keys()}
    for key in {"code", "message"} & fields.keys():
        fields[key] = fault.options[key]
    fact = state.fact(fault.words[1], job=job.id)
    own_fact = replace(fact, details=options, **fields)  # type: ignore[arg-type]  # typed by hand
    state.report(job, with_meaning(own_fact))


FACT_KEYS = frozenset({"node", "slot", "rank", "device", "code", "message", "generation"})


def _value(text: str) -> Detail:
    """`3`, `true` and `0.5` are what they look like, everything else is text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float | bool | None) else text


def _job(scene: FakeScene, fault: FaultLine) -> Job:
    return scene.state.jobs[scene.job(fault.words[0])]


def _pod_of_rank(job: Job, rank: int) -> Pod:
    pod = processes.pod_of_rank(job, rank)
    if pod is None:
        raise ValueError(f"{job.id} has no rank {rank}")
    return pod


# --- the table ----------------------------------------------------------------------------------

FAULTS: Mapping[str, tuple[str, Callable[[FakeScene, FaultLine], None]]] = {
    **faults.FAULTS,
    "metric": ("NODE INDEX VALUE|vary", metric),
    "kill": ("JOB RANK [signal N|exit N] [exception=TEXT|log=TEXT]", kill),
    "hang": ("JOB RANK [io] [idle]", hang),
    "kill-agent": ("JOB SLOT", kill_agent),
    "silence": ("NODE", silence),
    "unsilence": ("NODE", unsilence),
    "checkpoints": ("JOB away|back", checkpoints),
    "save": ("JOB STEP", save),
    "bad-checkpoint": ("JOB STEP [hidden]", bad_checkpoint),
    "fact": ("JOB KIND [KEY=VALUE]", report_fact),
}

USAGES: Mapping[str, str] = {name: usage for name, (usage, _) in FAULTS.items()}


def parse_fault(line: str) -> FaultLine:
    """Read a line; a ValueError says in one sentence how it should have been written."""
    return read_line(line, USAGES)


# --- applying -----------------------------------------------------------------------------------


def inject(state: FakeState, fault: FaultLine) -> None:
    """Carry out the fault now, or when its time or its step comes."""
    when, later = fault.when, partial(_inject_later, state, fault)
    if when.step is not None:
        processes.await_step(state, AwaitedStep(job=when.job, step=when.step, do=later))
    elif when.in_s:
        state.time.after(when.in_s, later)
    elif when.at_s is not None and EPOCH + when.at_s > state.now:
        state.time.at(EPOCH + when.at_s, later)
    else:
        FAULTS[fault.name][1](FakeScene(state), fault)


def _inject_later(state: FakeState, fault: FaultLine) -> None:
    try:
        FAULTS[fault.name][1](FakeScene(state), fault)
    except ValueError as error:  # no caller is left to raise it to
        state.note(f"could not {fault.line}: {error}")
