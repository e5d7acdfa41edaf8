"""Everything that can go wrong on demand: a table from the name of a fault to what it does.

How a line is read is `fault_lines.py`. Scenario files, the server's options and tests use the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from everstep.backends.fake.cluster import FakeCluster
from everstep.backends.fake.settings import EPOCH
from everstep.backends.fake.simulated import health, pods, processes
from everstep.backends.fake.simulated.model import Device, Job, Node, Pod
from everstep.backends.fake.simulated.state import AwaitedStep, State
from everstep.backends.fault_lines import Fault, read_line
from everstep.core.facts import Detail
from everstep.faults import told

# --- what they do -------------------------------------------------------------------------------


def node_down(cluster: FakeCluster, fault: Fault) -> None:
    act = pods.cut_off if "partition" in fault.options else pods.take_down
    act(cluster.state, cluster.node(fault.words[0]))


def node_up(cluster: FakeCluster, fault: Fault) -> None:
    pods.bring_up(cluster.state, cluster.node(fault.words[0]))


def break_device(cluster: FakeCluster, fault: Fault) -> None:
    node = cluster.node(fault.words[0])
    device = cluster.device(node.name, fault.number(1))
    health.break_device(cluster.state, node, device, fault.words[2], **fault.of_device())


def clear(cluster: FakeCluster, fault: Fault) -> None:
    """One device is sound again; without an index the whole node, as on its first day."""
    node, state = cluster.node(fault.words[0]), cluster.state
    if len(fault.words) > 1:
        _mend(state, node, cluster.device(node.name, fault.number(1)))
        return
    node.prechecks.clear()
    node.maintenance = None
    node.teardown_s = 0.0
    pods.bring_up(state, node)
    pods.unsilence(state, node)
    for device in node.devices:
        device.heal_s = None
        _mend(state, node, device)
    state.capacity_changed()


def _mend(state: State, node: Node, device: Device) -> None:
    """It is sound, and shows what its processes do again."""
    device.varies = False
    device.used_at = None
    device.band.forget()
    health.mend_device(state, node, device)


def metric(cluster: FakeCluster, fault: Fault) -> None:
    device = cluster.device(fault.words[0], fault.number(1))
    fault.percent(2)
    cluster.node(fault.words[0]).has_told_devices = True
    device.varies = fault.words[2] == "vary"
    if fault.words[2] != device.metric:
        device.metric, device.metric_at = fault.words[2], cluster.state.now
    if device.varies:
        device.band.forget()
        device.used_at = cluster.state.now
    elif device.band.is_change(float(fault.words[2])):
        device.used_at = cluster.state.now


def precheck(cluster: FakeCluster, fault: Fault) -> None:
    node, check = cluster.node(fault.words[0]), fault.words[1]
    if "clear" in fault.options:
        node.prechecks.pop(check, None)
    else:
        node.prechecks[check] = "hardware" in fault.options


def kill(cluster: FakeCluster, fault: Fault) -> None:
    job, rank = _job(cluster, fault.words[0]), fault.number(1)
    code = fault.options.get("exit")
    processes.exit_rank(
        cluster.state,
        _pod_of_rank(job, rank),
        rank,
        code=None if code is None else int(code),
        signal=int(fault.options.get("signal", processes.SIGKILL)) if code is None else None,
        exception=fault.options.get("exception"),
        log=fault.options.get("log"),
    )


def hang(cluster: FakeCluster, fault: Fault) -> None:
    job = _job(cluster, fault.words[0])
    pod = _pod_of_rank(job, fault.number(1))
    processes.hang_rank(cluster.state, pod, does_io="io" in fault.options)


def kill_agent(cluster: FakeCluster, fault: Fault) -> None:
    job, state = _job(cluster, fault.words[0]), cluster.state
    pod = job.pods.get(fault.number(1))
    if pod is None:
        raise ValueError(f"{job.id} has no pod in slot {fault.words[1]}")
    if pod.is_lost:
        return
    generation = pod.processes.generation if pod.processes else pod.generation
    pods.lose(state, pod)
    gone = state.seen_of(pod, "agent.gone", generation=generation)
    state.tell(job, replace(gone, message=f"the container of {pod.name} is gone"), through=pod.node)


def preempt(cluster: FakeCluster, fault: Fault) -> None:
    """Only the notice: what runs goes on until the job itself makes room."""
    job = _job(cluster, fault.words[0])
    message = "a more important job needs the place"
    cluster.state.tell(job, cluster.state.seen("job.preempted", job=job.id, message=message))


def slow_teardown(cluster: FakeCluster, fault: Fault) -> None:
    cluster.node(fault.words[0]).teardown_s = fault.seconds(1)


def silence(cluster: FakeCluster, fault: Fault) -> None:
    pods.silence(cluster.state, cluster.node(fault.words[0]))


def unsilence(cluster: FakeCluster, fault: Fault) -> None:
    pods.unsilence(cluster.state, cluster.node(fault.words[0]))


def storage(cluster: FakeCluster, fault: Fault) -> None:
    job, state = _job(cluster, fault.words[0]), cluster.state
    breaks = fault.one_of(("unwritable", "writable")) != "writable"
    if breaks == (job.unwritable is not None):
        return
    processes.save(state, job)  # what was completed before belongs to the time before
    kind = "storage.unwritable" if breaks else "storage.writable"
    fact = state.seen(kind, job=job.id, message=f"the storage of {job.id} is {kind[8:]}")
    job.unwritable = fact if breaks else None
    state.tell(job, fact)


def bad_checkpoint(cluster: FakeCluster, fault: Fault) -> None:
    job, step = _job(cluster, fault.words[0]), fault.number(1)
    state, path = cluster.state, job.checkpoints_path
    processes.save(state, job)
    hidden = "hidden" in fault.options
    if path is None or not state.storage.spoil(path, step, hidden=hidden):
        raise ValueError(f"{job.id} has no checkpoint of step {step}")
    if not hidden:
        processes.report_bad_checkpoint(state, job, path, step)


def heal_takes(cluster: FakeCluster, fault: Fault) -> None:
    cluster.device(fault.words[0], fault.number(1)).heal_s = fault.seconds(2)


def maintenance(cluster: FakeCluster, fault: Fault) -> None:
    health.announce_maintenance(cluster.state, cluster.node(fault.words[0]))


def add_node(cluster: FakeCluster, fault: Fault) -> None:
    if fault.words[0] not in cluster.state.nodes:
        cluster.state.add_node(fault.words[0])
        cluster.state.capacity_changed()


def tell(cluster: FakeCluster, fault: Fault) -> None:
    """Any fact of any kind: keys that a fact has are its own, the others are details."""
    job, state = _job(cluster, fault.words[0]), cluster.state
    said = {key: _value(text) for key, text in fault.options.items()}
    own = {key: said.pop(key) for key in FACT_KEYS & said.keys()}
    for key in {"code", "message"} & own.keys():
        own[key] = fault.options[key]
    fact = state.seen(fault.words[1], job=job.id)
    told_fact = replace(fact, details=said, **own)  # type: ignore[arg-type]  # typed by hand
    state.tell(job, told(told_fact))


FACT_KEYS = frozenset({"node", "slot", "rank", "device", "code", "message", "generation"})


def _value(text: str) -> Detail:
    """`3`, `true` and `0.5` are what they look like, everything else is text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | int | float | bool | None) else text


def _job(cluster: FakeCluster, job_id: str) -> Job:
    if job_id not in cluster.state.jobs:
        raise ValueError(f"there is no job {job_id!r}")
    return cluster.state.jobs[job_id]


def _pod_of_rank(job: Job, rank: int) -> Pod:
    pod = processes.pod_of_rank(job, rank)
    if pod is None:
        raise ValueError(f"{job.id} has no rank {rank}")
    return pod


# --- the table ----------------------------------------------------------------------------------

Deed = Callable[[FakeCluster, Fault], None]

FAULTS: Mapping[str, tuple[str, Deed]] = {
    "node-down": ("NODE [partition]", node_down),
    "node-up": ("NODE", node_up),
    "device": (
        "NODE INDEX CODE [warning|minor|major|critical] [heals|no-heals] [user|not-user]",
        break_device,
    ),
    "clear": ("NODE [INDEX]", clear),
    "metric": ("NODE INDEX VALUE|vary", metric),
    "precheck": ("NODE CHECK [hardware] [clear]", precheck),
    "kill": ("JOB RANK [signal N|exit N] [exception=TEXT|log=TEXT]", kill),
    "hang": ("JOB RANK [io]", hang),
    "kill-agent": ("JOB SLOT", kill_agent),
    "preempt": ("JOB", preempt),
    "slow-teardown": ("NODE SECONDS", slow_teardown),
    "silence": ("NODE", silence),
    "unsilence": ("NODE", unsilence),
    "storage": ("JOB [unwritable|writable]", storage),
    "bad-checkpoint": ("JOB STEP [hidden]", bad_checkpoint),
    "heal-takes": ("NODE INDEX SECONDS", heal_takes),
    "maintenance": ("NODE", maintenance),
    "add-node": ("NAME", add_node),
    "fact": ("JOB KIND [KEY=VALUE]", tell),
}

USAGES: Mapping[str, str] = {name: usage for name, (usage, _) in FAULTS.items()}


def parse_fault(line: str) -> Fault:
    """Read a line; a ValueError says in one sentence how it should have been written."""
    return read_line(line, USAGES)


# --- applying -----------------------------------------------------------------------------------


def inject(cluster: FakeCluster, fault: Fault) -> None:
    """Let it happen now, or when its time or its step comes."""
    when, state = fault.when, cluster.state
    later = partial(_happen_later, cluster, fault)
    if when.step is not None:
        processes.await_step(state, AwaitedStep(job=when.job, step=when.step, do=later))
    elif when.in_s:
        state.time.after(when.in_s, later)
    elif when.at_s is not None and EPOCH + when.at_s > state.now:
        state.time.at(EPOCH + when.at_s, later)
    else:
        FAULTS[fault.name][1](cluster, fault)


def _happen_later(cluster: FakeCluster, fault: Fault) -> None:
    # Nobody is there any more to whom an error could be told.
    try:
        FAULTS[fault.name][1](cluster, fault)
    except ValueError as error:
        cluster.state.note(f"could not {fault.line}: {error}")
