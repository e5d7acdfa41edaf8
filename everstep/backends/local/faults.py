"""Faults on demand, for rehearsals: the same lines as for all backends, applied to real processes.

The caller (the command line, a test) applies each at once, in the books and to the processes of this machine.
No worker is needed; workers see that the books changed.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from everstep.agent.observing import checks
from everstep.agent.processes import namespace, proc
from everstep.agent.processes.members import Members
from everstep.agent.storage import files, permissions
from everstep.backends.agents.client.link import NoAnswer, Refused
from everstep.backends.fault_lines import FaultLine, read_line
from everstep.backends.local import clock
from everstep.backends.local.database import books, nodes, pods
from everstep.backends.local.database.placing import Transaction, serve_queue
from everstep.backends.local.database.settings_table import next_number
from everstep.backends.local.database.store import Db, Store
from everstep.backends.local.reconciling.agents import AgentFolder, kill_agent
from everstep.backends.local.reconciling.liveness import Life, agent_of, sweep
from everstep.backends.local.settings import LocalSettings
from everstep.backends.rules import faults
from everstep.backends.rules.nodes import Node
from everstep.backends.tools import NothingRuns
from everstep.core.facts import Fact
from everstep.protocol import wire

Ranks = dict[tuple[str, int], wire.RankSeen]
"""Ranks by the uid of their pod, and their number."""

DEAD_S = 2.0
"""Longest wait until a killed process is gone; the kernel takes some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalScene(faults.Scene[Node]):
    """A transaction on the books, and the ranks of pods by the last states of their agents."""

    transaction: Transaction
    ranks: Ranks = field(default_factory=dict)

    @property
    def db(self) -> Db:
        return self.transaction.db

    @property
    def now(self) -> float:
        return self.transaction.now

    def folder(self, uid: str) -> AgentFolder:
        return self.transaction.settings.folder(uid)

    def nodes(self) -> Mapping[str, Node]:
        return nodes.every(self.db)

    def add_node(self, name: str) -> None:
        nodes.add(self.db, name, self.transaction.settings.devices)

    def keep(self, node: Node) -> None:
        nodes.keep(self.db, node)

    def new_fact(self, kind: str, **details: Any) -> Fact:
        details.pop("job", None)
        number = next_number(self.db, "fact")
        return Fact(id=f"cluster/{number}", kind=kind, at=self.now, **details)

    def add_node_fact(self, node: Node, fact: Fact, *, device: int | None = None) -> None:
        nodes.add_fact_to_jobs(self.db, node.name, fact, device=device)

    def lose(self, node: Node, *, proven: bool) -> None:
        for pod in pods.on_node(self.db, node.name) if proven else ():
            folder = self.folder(pod.uid)
            kill_agent(folder)
            ends_at = time.monotonic() + DEAD_S
            while sweep(folder.path) is not Life.GONE and time.monotonic() < ends_at:
                time.sleep(0.002)
            pods.lost(self.db, pod.uid)

    def changed(self, _node: Node | None) -> None:
        serve_queue(self.transaction)

    def end_rehearsals(self, node: Node, device: int | None) -> None:
        path = self.transaction.settings.metrics(node.name)
        if device is None:
            path.unlink(missing_ok=True)
        elif devices := _read_devices(path):
            devices.pop(str(device), None)
            _show(path, devices)

    def job(self, job_id: str) -> str:
        record = books.job(self.db, job_id)
        is_open = record.newest > record.closed  # without pods it waits for them
        if is_open or pods.of_job(self.db, job_id):
            return job_id
        raise ValueError(f"there is no job {job_id!r} on this cluster")

    def add_job_fact(self, job: str, fact: Fact) -> None:
        books.tell(self.db, job, fact)

    def unwritable(self, job: str) -> Fact | None:
        return books.job(self.db, job).unwritable

    def set_unwritable(self, job: str, fact: Fact | None) -> None:
        books.store(self.db, replace(books.job(self.db, job), unwritable=fact))


# -- Devices ------------------------------------------------------------------------------------


def metric(scene: LocalScene, fault: FaultLine) -> None:
    """Set the utilisation that the device shows; agents read it at their next look."""
    node, device = scene.device(fault.words[0], fault.number(1))
    path, index = scene.transaction.settings.metrics(node.name), device.index
    devices = _read_devices(path)
    devices[str(index)] = {**devices.get(str(index), {}), "utilisation": fault.percent(2)}
    _show(path, devices)


def _show(path: Path, devices: dict[str, Any]) -> None:
    permissions.folder(path.parent)
    files.replace(path, json.dumps({"devices": devices}))


def _read_devices(path: Path) -> dict[str, Any]:
    try:
        devices = files.read_json(path)["devices"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # there is none yet, or it was written by hand and is malformed
    return devices if isinstance(devices, dict) else {}


# -- Jobs ---------------------------------------------------------------------------------------


def kill(scene: LocalScene, fault: FaultLine) -> None:
    _signal(scene, fault, int(fault.options.get("signal", signal.SIGKILL)))


def hang(scene: LocalScene, fault: FaultLine) -> None:
    _signal(scene, fault, signal.SIGSTOP)


def _signal(scene: LocalScene, fault: FaultLine, number: int) -> None:
    """Signal the rank with all that it started. Raises `NothingRuns` if it has ended."""
    uid, rank = _rank(scene, fault)
    members = Members(scene.folder(uid).path, uid).find().members if not rank["exited_at"] else ()
    processes = [one for one in members if namespace.number_inside(one.pid) == rank["pid"]]
    if not processes:
        raise NothingRuns(f"rank {rank['rank']} of {fault.words[0]} has ended")
    for process in processes:
        proc.send(process, number, to_group=True)


def kill_agent_of(scene: LocalScene, fault: FaultLine) -> None:
    job_id, slot = fault.words[0], fault.number(1)
    pod = next((p for p in pods.of_job(scene.db, job_id) if p.slot == slot), None)
    if pod is None:
        raise ValueError(f"{job_id} has no pod in slot {slot}")
    number = int(fault.options.get("signal", signal.SIGKILL))
    process = agent_of(scene.folder(pod.uid).path)
    if process is None:
        raise NothingRuns(f"the agent of slot {slot} of {job_id} does not run")
    proc.send(process, number)


# -- The rank of a fault ------------------------------------------------------------------------


def _rank(scene: LocalScene, fault: FaultLine) -> tuple[str, wire.RankSeen]:
    """The rank of the line, with its pod."""
    job_id, number = scene.job(fault.words[0]), fault.number(1)
    uids = {pod.uid for pod in pods.of_job(scene.db, job_id)}
    ranks = {n: (uid, rank) for (uid, n), rank in scene.ranks.items() if uid in uids}
    if all(rank["exited_at"] is not None for _, rank in ranks.values()):
        raise NothingRuns(_idle(job_id))
    if number not in ranks:
        raise ValueError(f"{job_id} has no rank {number}")
    return ranks[number]


def _idle(job_id: str) -> str:
    return f"nothing of {job_id} runs now; `everstep status {job_id}` says why"


# -- The table ----------------------------------------------------------------------------------

FAULTS: Mapping[str, tuple[str, Callable[[LocalScene, FaultLine], None]]] = {
    **faults.FAULTS,
    "metric": ("NODE INDEX VALUE|vary", metric),
    "kill": ("JOB RANK [signal N]", kill),
    "hang": ("JOB RANK", hang),
    "kill-agent": ("JOB SLOT [signal N]", kill_agent_of),
}


def parse_fault(line: str) -> FaultLine:
    """Read a line; a ValueError says in one sentence how it should have been written."""
    return read_line(line, {name: usage for name, (usage, _) in FAULTS.items()})


def carry_out(scene: LocalScene, fault: FaultLine) -> None:
    FAULTS[fault.name][1](scene, fault)


# -- Done now, by the caller ----------------------------------------------------------------------


def _staying(db: Db) -> list[str]:
    return [pod.uid for pod in pods.all_pods(db) if not pod.is_leaving]


async def ranks_of_all(settings: LocalSettings, uids: list[str]) -> Ranks:
    """Every living rank, as its agent reports it now; none of an agent that is silent."""
    per_pod = await asyncio.gather(*(_ranks_of(settings.folder(uid), uid) for uid in uids))
    return {key: rank for ranks in per_pod for key, rank in ranks.items()}


async def _ranks_of(folder: AgentFolder, uid: str) -> Ranks:
    try:
        state = await folder.request("GET", f"{wire.STATE}?since=-1&wait_s=0")
    except (NoAnswer, Refused):
        return {}
    run: wire.RunSeen | None = state["run"]
    return {} if run is None else {(uid, rank["rank"]): rank for rank in run["ranks"]}


def refuse_slips(line: str) -> None:
    """Refuse a check that does not exist: it could be rehearsed, but never runs."""
    fault = parse_fault(line)
    if fault.name == "precheck" and fault.words[1] not in checks.NAMES:
        raise ValueError(f"{line!r} names no check; known are {', '.join(checks.NAMES)}")


async def rehearse(home: Path, line: str) -> None:
    """Done now, in the books of this state directory: workers see that they changed.

    A ValueError says in one sentence how the line should read, or that there is no such thing.
    """
    fault, settings = parse_fault(line), LocalSettings(home=home)
    if not settings.database.exists():
        raise ValueError(f"there is no local cluster in {home}; `everstep dev` makes one")
    with closing(Store(settings.database)) as store:
        offset = await store.run(clock.anchor)
        ranks = await ranks_of_all(settings, await store.run(_staying))

        def work(db: Db) -> None:
            transaction = Transaction(db=db, settings=settings, now=clock.now(offset))
            carry_out(LocalScene(transaction=transaction, ranks=ranks), fault)

        await store.run(work)
