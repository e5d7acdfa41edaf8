"""Plays the course of a scenario on the real control plane, in pods on nodes of the scenario's own.

A scheduler chooses nodes as it likes: a node is called as on the fake cluster once the job got there, `n2`
the one of slot 2 at first. What a fault is called on the fake cluster is another sentence here (`SENTENCES`).
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from temporalio.client import Client, WorkflowHandle

from everstep.backends.fault_lines import FaultLine
from everstep.backends.kubernetes import names
from everstep.client.jobs.found_job import find
from everstep.client.jobs.status import status_of
from everstep.core.deciding.decision import Decision
from tests.cases.on_fake import DEVICES
from tests.kubernetes.conftest import OWN_NODES, Ground
from tests.kubernetes.jobs import STORAGE, processes_marked, set_writable
from tests.kubernetes.on_kubernetes import ALWAYS_SOUND, CLUSTER, DEVICE, IMAGE, NODE
from tests.kubernetes.test_device_info import fault as device_fault
from tests.kubernetes.test_device_info import info
from tests.kubernetes.test_disruptions import Cluster
from tests.plays.scenarios import faults_of
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.playing.course import Action, Course, Moment, UnstartedPod
from tests.support.playing.on_processes import EVERY, POLL_S, SCRIPT, STILL_S, OnProcesses
from tests.support.playing.scenario import JOB, Cue, Played, Scenario
from tests.support.playing.sense import sense
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Json

AUTOSCALER = "ToBeDeletedByClusterAutoscaler"
SENTENCES: Mapping[str, str] = {
    "was removed from the cluster": "is down",
    "is not ready: Kubelet stopped posting node status.": "is cut off",
    f": taint {AUTOSCALER} (cluster autoscaler): the node is about to be removed": (
        " is about to be serviced"
    ),
    "container train ended with exit code 137 (Error)": "the container of demo/2 is gone",
    "agent.gone, pod.exited": "agent.gone",
    "preempted on n2: preempted on n2": "preempted on no place: preempted",
    "default-scheduler: preempting to accommodate a higher priority pod": (
        "a more important job needs the place"
    ),
    "agent.gone, pod.preempted": "job.preempted",
    "pod.preempted": "job.preempted",
    "XID 79": "79",
    "storage.given_up": "storage.unwritable",
}
"""The scenarios' words by those of pods. A scheduler preempts pods, and the end of a pod or container is a
fact besides that of its agent; a job may have seen both by the time it decides."""

NODE_NAME = re.compile(r"\bn\d+\b")  # on the fake cluster
WAITS = re.compile(r"(waiting for|it waited for) [^;]*")
"""What a job waits for where it waits for places is in the words of the scheduler."""

OF_DEVICES = re.compile(
    "the device works, but not as it should|the device cannot repair itself|a warning needs no action"
    "|the device may repair itself|the code is caused by what the device was fed"
    r"|CardUnhealthy on Ascend910-\d+, its device plugin reports"
    r"|n\d+: GpuPcieWatch: ErrorCode:\d+ GPU:\d+"
)
"""What is wrong with a device, in the words of the playbook, of a device plugin or of a monitor."""
TOO_FEW = re.compile(
    r"only \d of \d slots found a place"
    r"|the cluster found no place for \d slots, nor for any smaller number tried"
)
"""How many places there are a scheduler does not say where it places all pods or none."""
NOT_WRITABLE = re.compile(
    r"it could not be written for [^:;]*: [^;]*"
    r"|(?:the storage of demo is unwritable|/\S+ cannot be written) for [^;]*"
)
"""How long the storage took nothing, and what it answered: a kernel has words of its own."""
LISTED = re.compile(r"(?<=unreachable on \[).*(?=\])")
OF_SEVERAL = re.compile(r" and \d+ more: ")
"""Of nodes that are lost at once, the sentence names the one whose loss the API server stored first."""
ANYWHERE = frozenset(
    {
        "container_gone",
        "crash_loop",
        "device_of_user_does_not_heal",
        "elastic_number_that_does_not_work",
        "elastic_too_few_nodes",
        "maintenance",
        "maintenance_and_node_lost",
        "no_spare_until_later",
        "node_released",
        "operator_restart_job",
        "preempted",
        "spare_taken",
        "two_phases",
        "user_rule_levels",
    }
)
"""Which node a new pod gets is the scheduler's choice, as several are sound: any will do. Of nodes
that are lost at once, any may be the first."""
ALONE = frozenset(
    {
        "one_machine_device_heals_later",
        "one_machine_device_stays_broken",
        "one_machine_fewer_devices",
    }
)
"""Scenarios that get a cluster of their own, whose only node is never isolated. Pods request devices there,
as only their number keeps a pod off a node with a broken one."""
DONE_HERE = (
    *("kill", "kill-agent", "hang", "silence", "unsilence"),
    *("node-down", "node-up", "add-node", "partition", "maintenance", "preempt", "device", "clear"),
    "storage",
)
"""Faults that can happen in any cluster, by whatever cause."""
LEVELS: Mapping[str, str] = {
    "critical": "SeparateNPU",
    "warning": "NotHandleFault",
    "heals": "RestartBusiness",
    "no-heals": "RestartBusiness",
    "81AD8605": "SubHealthFault",
    "110001024": "PreSeparateNPU",
}
"""What a device plugin reports of a fault whose line ends with this word."""
HEALED: Mapping[str, str] = {"heals": "", "no-heals": "SeparateNPU"}
"""What it reports once the job waits for the device to heal; empty: no fault any more."""
NVIDIA = "79"


def _devices(scenario: Scenario) -> Mapping[str, Any]:
    """The devices that the job requests."""
    if scenario.path.stem not in ALONE:
        return {"accelerator": "none", "accelerators_per_node": 0}
    number = scenario.document["spec"].get("accelerators_per_node", DEVICES)
    return {"accelerator": "ascend", "accelerators_per_node": number}


def only_notes_sound_devices(decision: Decision) -> bool:
    """Whether it only notes that a device is sound again, which a plugin reports at another moment."""
    return {one.split()[0] for one in decision.seen} == {"device.healed"}


def for_pods(course: Course) -> Course:
    """The course without the notes that a device is sound again."""

    def without_notes(decisions: Sequence[Decision]) -> tuple[Decision, ...]:
        return tuple(one for one in decisions if not only_notes_sound_devices(one))

    def counted(action: Action) -> Action:
        if action.moment is None:
            return action
        before = without_notes(course.played.decisions[: action.moment.decisions])
        return replace(action, moment=replace(action.moment, decisions=len(before)))

    return replace(
        course,
        actions=tuple(map(counted, course.actions)),
        played=replace(course.played, decisions=without_notes(course.played.decisions)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenDevice:
    """A fault as a device plugin reports it."""

    node: str
    index: str
    code: str
    at: int  # ms

    @classmethod
    def now(cls, node: str, index: str, code: str) -> Self:
        return cls(node=node, index=index, code=code, at=int(time.time() * 1000))

    def as_info(self, level: str) -> Json:
        """All that the plugin reports of its node; without a level no fault."""
        device = f"Ascend910-{self.index}"
        faults = [device_fault(self.code, device=device, level=level, at=self.at)] if level else []
        return info(*faults)


class InPods(OnProcesses):
    """A scenario in pods of one namespace, on nodes for it alone."""

    cluster_name: ClassVar[str] = CLUSTER

    def __init__(
        self,
        server: DevServer,
        client: Client,
        home: Path,
        *,
        ground: Ground,
        namespace: str,
        kubeconfig: str,
    ) -> None:
        super().__init__(server, client, home)
        self.api, self.machines = ground.api, ground.machines
        self.namespace, self.kubeconfig = namespace, kubeconfig
        self.nodes: set[str] = set()  # that live
        self.node_of: dict[str, str] = {}  # by their names on the fake cluster
        self.unused: list[str] = []  # names there that are not given yet
        self.tasks: list[asyncio.Task[None]] = []

    def _worker(
        self,
        scenario: Scenario,  # noqa: ARG002  # nodes are the cluster's
        course: Course,  # noqa: ARG002  # and time has no scale
    ) -> WorkerProcess:
        return WorkerProcess(
            address=self.server.address,
            namespace=self.client.namespace,
            home=self.home.parent / "worker",
            cluster=CLUSTER,
            backend="kubernetes",
            env={
                "EVERSTEP_KUBECONFIG": self.kubeconfig,
                "EVERSTEP_KUBE_NAMESPACE": self.namespace,
                "EVERSTEP_KUBE_DEVICE_INFO": "true",
                "EVERSTEP_PRECHECK__CACHE": "/",
                "EVERSTEP_PRECHECK__CACHE_GB": "0",
                "EVERSTEP_JANITOR": "false",
                **ALWAYS_SOUND,
            },
        )

    async def _prepare(self, scenario: Scenario) -> None:
        for folder in (self.home, self.control):
            folder.chmod(0o777)  # ranks are another user
        shutil.copy(SCRIPT, self.home)
        for number in range(scenario.nodes):
            self.unused.append(f"n{number}")
            await self._add_node(f"{self.namespace}-{number}")

    async def _add_node(self, node: str) -> None:
        await self.machines.add_node(node, labels={OWN_NODES: self.namespace}, resources=NODE)
        self.nodes.add(node)

    def _spec(self, scenario: Scenario, course: Course) -> Mapping[str, Any]:
        """Each pod takes a node. Nothing hangs, and what is waited for in vain is not waited for long."""
        train = {
            "name": "train",
            "volumeMounts": [{"name": "storage", "mountPath": STORAGE}],
            "resources": {"requests": {"cpu": NODE["cpu"]}},
        }
        storage = {"name": "storage", "hostPath": {"path": str(self.home)}}
        env = {
            "CONTROL": f"{STORAGE}/control",
            "CHECKPOINTS": f"{STORAGE}/out/ckpt",
            "CHECKPOINT_EVERY": str(EVERY),
            "STEP_S": "0.01",
        }
        limits = {"hang_s": 10 * HUNG_S, "spare_s": 2.0}
        faults = faults_of(scenario)
        if "silence" in faults:
            limits["unreachable_s"] = STILL_S
        if faults == {"silence", "unsilence"}:  # the others have to go on for longer than that
            env["STEP_S"] = str(STILL_S / 60)
        if faults == {"hang"}:  # what is learned of its steps counts
            del limits["hang_s"]
        if course.ends_long_after:
            limits["requeue_s"] = STILL_S
        return {
            "cluster": CLUSTER,
            "image": IMAGE,
            "command": ["/usr/bin/env", "python3", "-I", "-S", f"{STORAGE}/{SCRIPT.name}"],
            "model_dir": f"{STORAGE}/out",
            "checkpoints": {"path": f"{STORAGE}/out/ckpt"},
            **_devices(scenario),
            "pod_template": {"spec": {"volumes": [storage], "containers": [train]}},
            "env": env,
            "limits": {**limits, **scenario.document["spec"].get("limits", {})},
        }

    # -- waiting ---------------------------------------------------------------------------------

    async def _newest_saved(self) -> Sequence[int | None]:
        """As `everstep status` shows it: what the monitor saw last is only in its heartbeat."""
        return [(await status_of(await find(self.client, JOB)))["checkpoint_step"]]

    async def _is_placed(self, pod: UnstartedPod) -> bool:
        pods = {pod["metadata"]["name"]: pod for pod in await self._pods()}
        in_cluster = pods.get(f"{JOB}-{pod.slot}-g{pod.generation}")
        return in_cluster is not None and bool(in_cluster["spec"].get("nodeName"))

    def _waits_as(self, moment: Moment, status: Mapping[str, Any]) -> bool:
        """A scheduler has words of its own."""
        return moment.waiting_for is None or bool(status["waiting_for"])

    async def _pods(self) -> Sequence[Json]:
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        items: Sequence[Json] = (await self.api.get(path, labelSelector=names.SLOT))["items"]
        return items

    # -- doing -----------------------------------------------------------------------------------

    async def _hold(self, unstarted: tuple[UnstartedPod, ...]) -> None:
        if unstarted:
            await self._hold_pods(True)

    async def _let_in(self, unstarted: tuple[UnstartedPod, ...]) -> None:
        if unstarted:
            await self._hold_pods(False)

    async def _hold_pods(self, held: bool) -> None:
        for node in sorted(self.nodes):
            await self.machines.fault("hold-pods", node=node, held=held)

    async def _happen(self, faults: Sequence[FaultLine]) -> None:
        """At once: of two nodes one would be replaced before the other one is lost."""
        await asyncio.gather(*(self._happens(fault) for fault in faults))

    async def _happens(self, fault: FaultLine) -> None:
        match fault.name, fault.words:
            case "kill", [_, rank] if "exit" not in fault.options:
                self._signal(rank, int(fault.options.get("signal", signal.SIGKILL)))
            case "kill", _:
                await self._exit(fault)
            case "hang", [_, rank]:
                self._signal(rank, signal.SIGSTOP)
            case "kill-agent", [_, slot]:
                [pod] = [pod for pod in await self._pods() if _slot_of(pod) == slot]
                name = pod["metadata"]["name"]
                place = {"namespace": self.namespace, "container": "train"}
                await self.machines.fault("container-kill", pod=name, **place)
            case "silence" | "unsilence", [name]:
                is_silent = fault.name == "silence"
                self._signal_agent(name, signal.SIGSTOP if is_silent else signal.SIGCONT)
            case "preempt", [job]:
                await Cluster(self.api, self.machines, self.namespace).preempt(f"{job}-2-g1")
            case "device", [name, index, code]:
                await self._device(fault, BrokenDevice.now(self.node_of[name], index, code))
            case "clear", [name, index]:
                node = self.node_of[name]
                await self._count_devices(node, broken=0)
                await self._report(BrokenDevice.now(node, index, ""), "")
            case "storage", [job]:
                await self._storage(job, is_writable=fault.one_of(("writable",)) is not None)
            case _:
                await self._happens_to_node(fault)

    async def _happens_to_node(self, fault: FaultLine) -> None:
        match fault.name, fault.words:
            case "node-down", [name] if fault.one_of(("partition",)):
                await self.machines.fault("partition", node=self.node_of[name])
            case "node-down", [name]:
                node = self.node_of[name]
                self.nodes.discard(node)
                await self.machines.remove_node(node)
            case "node-up", [name]:
                await self._add_node(self.node_of[name])
            case "maintenance", [name]:
                taint = {"key": AUTOSCALER, "effect": "NoSchedule"}
                await self.machines.fault("node-taint", node=self.node_of[name], **taint)
            case "add-node", [name]:
                self.node_of[name] = f"{self.namespace}-{name}"
                await self._add_node(self.node_of[name])
            case _:
                raise AssertionError(f"{fault.line} cannot be done here")

    async def _storage(self, job: str, *, is_writable: bool) -> None:
        """The volume takes nothing from ranks and agents any more; its operator reports that to the job."""
        await asyncio.to_thread(set_writable, self.home / "out", is_writable)
        kind = "storage.writable" if is_writable else "storage.unwritable"
        report = {"kind": kind, "message": f"the storage of {job} is {kind.partition('.')[2]}"}
        await self.client.get_workflow_handle(JOB).execute_update("report_fault", report)

    async def _device(self, fault: FaultLine, device: BrokenDevice) -> None:
        if device.code == NVIDIA:
            message = f"ErrorCode:{device.code} GPU:{device.index}"
            condition = {"kind": "GpuPcieWatch", "holds": True, "message": message}
            await self.machines.fault("node-condition", node=device.node, **condition)
            return
        word = fault.one_of(tuple(LEVELS)) or device.code
        await self._count_devices(device.node, broken=1)
        await self._report(device, LEVELS[word])
        if word in HEALED:
            self.tasks.append(asyncio.create_task(self._heal(device, HEALED[word])))

    async def _heal(self, device: BrokenDevice, level: str) -> None:
        """The device heals, or turns out not to, while its job waits for that."""
        what = f"device {device.node}/{device.index} to heal"
        while (await self._status())["waiting_for"] != what:
            await asyncio.sleep(POLL_S)
        await self._report(device, level)

    async def _count_devices(self, node: str, *, broken: int) -> None:
        """A device plugin takes broken devices out."""
        count = {"resource": DEVICE, "count": DEVICES - broken}
        await self.machines.fault("device-count", node=node, **count)

    async def _report(self, device: BrokenDevice, level: str) -> None:
        device_info = device.as_info(level)
        await self.machines.fault("device-config-map", node=device.node, device_info=device_info)

    async def _submitted(self, *words: Any) -> WorkflowHandle[Any, Any]:
        self.tasks.append(asyncio.create_task(self._go_on_naming()))
        return await super()._submitted(*words)

    async def _go_on_naming(self) -> None:
        while True:
            await self._name_nodes()
            await asyncio.sleep(POLL_S)

    async def _name_nodes(self) -> None:
        """On the fake cluster slots are first on nodes in their order, and get spare ones in theirs."""
        for pod in sorted(await self._pods(), key=lambda pod: pod["metadata"]["name"]):
            node, labels = pod["spec"].get("nodeName"), pod["metadata"]["labels"]
            if not node:
                return  # the scheduler may choose for a later slot first
            if node not in self.node_of.values():
                first = f"n{_slot_of(pod)}" if labels[names.GENERATION] == "1" else ""
                name = first if first in self.unused else self.unused[0]
                self.unused.remove(name)
                self.node_of[name] = node

    async def _act(
        self, job: WorkflowHandle[Any, Any], cue: Cue, status: Mapping[str, Any]
    ) -> None:
        name = self.node_of.get(cue.name, cue.name)
        await super()._act(job, replace(cue, name=name), status)

    async def _tell(self, job: WorkflowHandle[Any, Any], cue: Cue) -> None:
        args = {key: self.node_of.get(str(value), value) for key, value in cue.args.items()}
        await super()._tell(job, replace(cue, args=args))

    def _signal(self, rank: str, number: int) -> None:
        marks = {f"EVERSTEP_JOB={JOB}".encode(), f"RANK={rank}".encode()}
        for pid in processes_marked(marks, script=SCRIPT.name):
            if Path(f"/proc/{pid}/root{STORAGE}").samefile(self.home):
                os.kill(pid, number)

    def _signal_agent(self, name: str, number: int) -> None:
        mark = f"EVERSTEP_NODE={self.node_of[name]}".encode()
        for pid in processes_marked({mark}, script="--node"):
            os.kill(pid, number)

    # -- afterwards ------------------------------------------------------------------------------

    async def _left(self) -> Sequence[str]:
        return [pod["metadata"]["name"] for pod in await self._pods()]

    async def _clean_up(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        while self.nodes:
            await self.machines.remove_node(self.nodes.pop())

    async def _decisions(self, job: WorkflowHandle[Any, Any]) -> AsyncIterator[Decision]:
        async for decision in super()._decisions(job):
            if not only_notes_sound_devices(decision):
                yield decision

    def sense(self, played: Played) -> list[str]:
        """The sense of the course, with nodes as on the fake cluster."""
        in_fake = {node: name for name, node in self.node_of.items()}
        words = {name: in_fake[name] for name in sorted(in_fake, key=len, reverse=True)}
        lines = sense(played)
        for in_pods, on_fake in {**words, **SENTENCES}.items():
            lines = [line.replace(in_pods, on_fake) for line in lines]
        return [_sorted(line) for line in of_all(lines)]


def _slot_of(pod: Json) -> str:
    return str(pod["metadata"]["labels"][names.SLOT])


def _sorted(line: str) -> str:
    """Nodes of a list are in the order of their names, which are others here."""
    what, colon, nodes = line.partition("isolated: ")
    if not what:
        return f"{what}{colon}{' '.join(sorted(nodes.split()))}"
    return LISTED.sub(lambda match: ", ".join(sorted(match[0].split(", "))), line)


def anywhere(lines: Sequence[str]) -> list[str]:
    """The same without which nodes it were, and that new pods wait for them at the moment of a status."""
    courses = (NODE_NAME.sub("a node", line) for line in lines if not line.startswith("  from {"))
    return [line.replace("; waiting for places", "") for line in courses]


def of_all(lines: Sequence[str]) -> list[str]:
    """What of the sense of a course does not depend on the scheduler of pods or the watch of devices."""
    lines = [NODE_NAME.sub("a node", line) if OF_SEVERAL.search(line) else line for line in lines]
    for pattern, words in (
        (WAITS, r"\1 places"),
        (OF_DEVICES, "a device is faulty"),
        (TOO_FEW, "too few slots found a place"),
        (NOT_WRITABLE, "the storage cannot be written"),
    ):
        lines = [pattern.sub(words, line) for line in lines]
    return list(lines)
