"""Faults on demand, for rehearsals: the same lines as everywhere, done to real processes.

Each is done at once by whoever asks, in the books and to the processes of this machine, so that no
worker has to be there. Workers see that the books changed.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep import faults
from everstep.agent import wire
from everstep.agent.processes import proc
from everstep.agent.processes.members import Members
from everstep.agent.storage import files, private
from everstep.backends.fault_lines import Fault, read_line
from everstep.backends.local.database import books, nodes, pods
from everstep.backends.local.database.placing import Moment, serve_queue
from everstep.backends.local.database.pods import Pod
from everstep.backends.local.reconciling.agents import Folder, kill_agent
from everstep.backends.local.reconciling.liveness import Life, agent_of, sweep
from everstep.backends.tools import NothingRuns
from everstep.core.facts import Fact

DEAD_S = 2.0
"""So long we look whether what was killed is gone; the kernel takes some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a fault may touch: the books, and the processes of pods, each with what its agent said last."""

    moment: Moment
    folder: Callable[[str], Folder]
    ranks: Mapping[tuple[str, int], wire.RankSeen]  # by pod and rank

    @property
    def db(self) -> Any:
        return self.moment.db

    def seen(self, kind: str, **said: Any) -> Fact:
        """A new sighting by the cluster itself."""
        n = books.number(self.db, "fact")
        return Fact(id=f"cluster/{n}", kind=kind, at=self.moment.now, **said)


# -- Nodes --------------------------------------------------------------------------------------


def node_down(scene: Scene, fault: Fault) -> None:
    """Out of service at once, its processes killed; cut off, they live on and nothing is proven."""
    name = fault.words[0]
    cut_off = "partition" in fault.options
    service = "cut_off" if cut_off else "down"
    if nodes.named(scene.db, name).service == service:
        return
    kind, message = ("node.not_ready", "is cut off") if cut_off else ("node.down", "is down")
    told = scene.seen(kind, node=name, message=f"{name} {message}", details={"proven": not cut_off})
    scene.db.execute(
        "UPDATE nodes SET service = ?, since = ?, condition = ? WHERE name = ?",
        (service, scene.moment.now, books.to_text(told), name),
    )
    nodes.tell(scene.db, name, told)
    if not cut_off:
        _kill_pods(scene, pods.on_node(scene.db, name))


def _kill_pods(scene: Scene, killed: list[Pod]) -> None:
    for pod in killed:
        folder = scene.folder(pod.uid)
        kill_agent(folder)
        ends_at = time.monotonic() + DEAD_S
        while sweep(folder.path) is not Life.GONE and time.monotonic() < ends_at:
            time.sleep(0.002)
        pods.lost(scene.db, pod.uid)


def node_up(scene: Scene, fault: Fault) -> None:
    name = fault.words[0]
    if nodes.named(scene.db, name).service == "ready":
        return
    scene.db.execute(
        "UPDATE nodes SET service = 'ready', since = NULL, condition = NULL WHERE name = ?", (name,)
    )
    nodes.tell(scene.db, name, scene.seen("node.up", node=name, message=f"{name} is back"))
    serve_queue(scene.moment)


def slow_teardown(scene: Scene, fault: Fault) -> None:
    scene.db.execute(
        "UPDATE nodes SET teardown_s = ? WHERE name = ?", (fault.seconds(1), _node(scene, fault))
    )


def maintenance(scene: Scene, fault: Fault) -> None:
    name = _node(scene, fault)
    if nodes.named(scene.db, name).maintenance is not None:
        return
    told = scene.seen("maintenance.notice", node=name, message=f"{name} is about to be serviced")
    scene.db.execute("UPDATE nodes SET maintenance = ? WHERE name = ?", (books.to_text(told), name))
    nodes.tell(scene.db, name, told)


def add_node(scene: Scene, fault: Fault) -> None:
    nodes.add(scene.db, fault.words[0], scene.moment.settings.devices)
    serve_queue(scene.moment)


def precheck(scene: Scene, fault: Fault) -> None:
    name, check = _node(scene, fault), fault.words[1]
    if "clear" in fault.options:
        scene.db.execute("DELETE FROM prechecks WHERE node = ? AND name = ?", (name, check))
        return
    scene.db.execute(
        "INSERT OR REPLACE INTO prechecks VALUES (?, ?, ?)",
        (name, check, "hardware" in fault.options),
    )


# -- Devices ------------------------------------------------------------------------------------


def break_device(scene: Scene, fault: Fault) -> None:
    """The device shows a fault. A code it already shows is no news."""
    name, index = _device(scene, fault)
    code = fault.words[2]
    if (index, code) in nodes.codes_on(scene.db, name):
        return
    seen = scene.seen(
        "device.fault",
        node=name,
        device=index,
        code=code,
        message=f"{code} on {name}/{index}",
        details=fault.of_device(),
    )
    told = faults.told(seen)
    scene.db.execute(
        "INSERT INTO device_faults VALUES (?, ?, ?, ?)", (name, index, code, books.to_text(told))
    )
    scene.db.execute("DELETE FROM heals WHERE node = ? AND device = ?", (name, index))
    nodes.tell(scene.db, name, told, device=index)


def mend(moment: Moment, node: str, device: int) -> None:
    """The device is sound again, and whoever holds it is told."""
    moment.db.execute("DELETE FROM heals WHERE node = ? AND device = ?", (node, device))
    mended = moment.db.execute(
        "DELETE FROM device_faults WHERE node = ? AND device = ?", (node, device)
    )
    if not mended.rowcount:
        return
    n = books.number(moment.db, "fact")
    healed = Fact(
        id=f"cluster/{n}",
        kind="device.healed",
        at=moment.now,
        node=node,
        device=device,
        message=f"{node}/{device} is sound again",
    )
    nodes.tell(moment.db, node, healed, device=device)
    serve_queue(moment)


def metric(scene: Scene, fault: Fault) -> None:
    """The device shows this utilisation from now on; agents read it at their next look."""
    name, index = _device(scene, fault)
    path = scene.moment.settings.metrics(name)
    devices = _shown(path)
    devices[str(index)] = {**devices.get(str(index), {}), "utilisation": fault.percent(2)}
    _show(path, devices)


def _show(path: Path, devices: dict[str, Any]) -> None:
    private.folder(path.parent)
    files.replace(path, json.dumps({"devices": devices}))


def _shown(path: Path) -> dict[str, Any]:
    try:
        devices = files.read_json(path)["devices"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # there is none yet, or somebody wrote it by hand and slipped
    return devices if isinstance(devices, dict) else {}


def heal_takes(scene: Scene, fault: Fault) -> None:
    name, index = _device(scene, fault)
    scene.db.execute(
        "INSERT OR REPLACE INTO heal_times VALUES (?, ?, ?)", (name, index, fault.seconds(2))
    )


def clear(scene: Scene, fault: Fault) -> None:
    """One device is sound again; without an index the whole node, as on its first day."""
    if len(fault.words) > 1:
        name, index = _device(scene, fault)
        path = scene.moment.settings.metrics(name)
        devices = _shown(path)
        if devices.pop(str(index), None) is not None:
            _show(path, devices)
        mend(scene.moment, name, index)
        return
    name = _node(scene, fault)
    scene.db.execute("DELETE FROM prechecks WHERE node = ?", (name,))
    scene.db.execute("DELETE FROM heal_times WHERE node = ?", (name,))
    scene.moment.settings.metrics(name).unlink(missing_ok=True)
    scene.db.execute("UPDATE nodes SET maintenance = NULL, teardown_s = 0 WHERE name = ?", (name,))
    for index in range(nodes.named(scene.db, name).devices):
        mend(scene.moment, name, index)
    node_up(scene, fault)
    serve_queue(scene.moment)


# -- Jobs ---------------------------------------------------------------------------------------


def kill(scene: Scene, fault: Fault) -> None:
    _signal(scene, fault, int(fault.options.get("signal", signal.SIGKILL)))


def hang(scene: Scene, fault: Fault) -> None:
    _signal(scene, fault, signal.SIGSTOP)


def _signal(scene: Scene, fault: Fault, number: int) -> None:
    """To the rank with all that it started, if it is still a process of its pod."""
    uid, rank = _rank(scene, fault)
    if rank["exited_at"] is None:
        found = Members(scene.folder(uid).path, uid).look().members
        for seen in found:
            if seen.pid == rank["pid"]:
                proc.send(seen, number, to_group=True)


def kill_agent_of(scene: Scene, fault: Fault) -> None:
    job_id, slot = fault.words[0], fault.number(1)
    pod = next((p for p in pods.of_job(scene.db, job_id) if p.slot == slot), None)
    if pod is None:
        raise ValueError(f"{job_id} has no pod in slot {slot}")
    number = int(fault.options.get("signal", signal.SIGKILL))
    if seen := agent_of(scene.folder(pod.uid).path):
        proc.send(seen, number)


def preempt(scene: Scene, fault: Fault) -> None:
    """Only the notice: what runs goes on until the job itself makes room."""
    job_id = _job(scene, fault)
    message = "a more important job needs the place"
    books.tell(scene.db, job_id, scene.seen("job.preempted", message=message))


def storage(scene: Scene, fault: Fault) -> None:
    """What the checks say of the storage; the folders themselves stay as they are."""
    job_id = _job(scene, fault)
    breaks = fault.one_of(("unwritable", "writable")) != "writable"
    if breaks == (books.job(scene.db, job_id).unwritable is not None):
        return
    kind = "storage.unwritable" if breaks else "storage.writable"
    told = scene.seen(kind, message=f"the storage of {job_id} is {kind[8:]}")
    text = books.to_text(told) if breaks else None
    scene.db.execute("UPDATE jobs SET unwritable = ? WHERE id = ?", (text, job_id))
    books.tell(scene.db, job_id, told)


# -- Whom it is about ---------------------------------------------------------------------------


def _node(scene: Scene, fault: Fault) -> str:
    return nodes.named(scene.db, fault.words[0]).name


def _device(scene: Scene, fault: Fault) -> tuple[str, int]:
    node, index = nodes.named(scene.db, fault.words[0]), fault.number(1)
    if not 0 <= index < node.devices:
        raise ValueError(f"{node.name} has no device {index}; it has {node.devices}")
    return node.name, index


def _job(scene: Scene, fault: Fault) -> str:
    job_id = fault.words[0]
    if not pods.of_job(scene.db, job_id):
        raise ValueError(f"there is no job {job_id!r} on this cluster")
    return job_id


def _rank(scene: Scene, fault: Fault) -> tuple[str, wire.RankSeen]:
    """With the pod that it is in."""
    job_id, rank = _job(scene, fault), fault.number(1)
    uids = {pod.uid for pod in pods.of_job(scene.db, job_id)}
    found = {number: (uid, seen) for (uid, number), seen in scene.ranks.items() if uid in uids}
    if all(seen["exited_at"] is not None for _, seen in found.values()):
        raise NothingRuns(f"nothing of {job_id} runs now; `everstep status {job_id}` says why")
    if rank not in found:
        raise ValueError(f"{job_id} has no rank {rank}")
    return found[rank]


# -- The table ----------------------------------------------------------------------------------

FAULTS: Mapping[str, tuple[str, Callable[[Scene, Fault], None]]] = {
    "node-down": ("NODE [partition]", node_down),
    "node-up": ("NODE", node_up),
    "device": (
        "NODE INDEX CODE [warning|minor|major|critical] [heals|no-heals] [user|not-user]",
        break_device,
    ),
    "clear": ("NODE [INDEX]", clear),
    "metric": ("NODE INDEX VALUE|vary", metric),
    "precheck": ("NODE CHECK [hardware] [clear]", precheck),
    "kill": ("JOB RANK [signal N]", kill),
    "hang": ("JOB RANK", hang),
    "kill-agent": ("JOB SLOT [signal N]", kill_agent_of),
    "preempt": ("JOB", preempt),
    "slow-teardown": ("NODE SECONDS", slow_teardown),
    "storage": ("JOB [unwritable|writable]", storage),
    "heal-takes": ("NODE INDEX SECONDS", heal_takes),
    "maintenance": ("NODE", maintenance),
    "add-node": ("NAME", add_node),
}


def parse_fault(line: str) -> Fault:
    """Read a line; a ValueError says in one sentence how it should have been written."""
    return read_line(line, {name: usage for name, (usage, _) in FAULTS.items()})


def happen(scene: Scene, fault: Fault) -> None:
    FAULTS[fault.name][1](scene, fault)
