"""Plays the course of a scenario on the real control plane, in pods on nodes of the scenario's own.

A scheduler chooses nodes as it likes: a node is called as on the fake cluster once the job got there, `n2`
the one of slot 2 at first. What the fake cluster says of a lost node is another sentence here (`SENTENCES`).
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from temporalio.client import Client, WorkflowHandle

from everstep.backends.fault_lines import FaultLine
from everstep.backends.kubernetes import names
from everstep.cli.jobs.asking import status_of
from everstep.cli.jobs.job import find
from tests.kubernetes.conftest import OWN_NODES, Ground
from tests.kubernetes.jobs import STORAGE, processes_marked
from tests.kubernetes.on_kubernetes import ALWAYS_SOUND, CLUSTER, IMAGE, NODE
from tests.kubernetes.test_device_info import fault as device_fault
from tests.kubernetes.test_device_info import info
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.playing.course import Course, Moment, UnstartedPod
from tests.support.playing.on_processes import EVERY, POLL_S, SCRIPT, STILL_S, OnProcesses
from tests.support.playing.scenario import JOB, Cue, Played, Scenario
from tests.support.playing.sense import sense
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Json

SENTENCES = {"was removed from the cluster": "is down"}
NODE_NAME = re.compile(r"\bn\d+\b")  # on the fake cluster
WAITS = re.compile(r"(waiting for|it waited for) [^;]*")
"""What a job waits for where it waits for places is in the words of the scheduler."""

OF_DEVICES = re.compile(
    "the device works, but not as it should|the device cannot repair itself|a warning needs no action"
    r"|CardUnhealthy on Ascend910-\d+, its device plugin reports"
)
"""What is wrong with a device, in the words of the playbook or of a device plugin."""
ANYWHERE = frozenset(
    {
        "crash_loop",
        "no_spare_until_later",
        "operator_restart_job",
        "two_phases",
        "user_rule_levels",
    }
)
"""Which node a new pod gets is the scheduler's choice, as several are sound: any will do."""
_PLACES = "how many places there are a scheduler does not say: smaller and larger numbers are tried"
_ALONE = "a device is isolated with its node: a pod asks for a number of devices, not for some"
ELSEWHERE: Mapping[str, str] = {
    "one_machine_device_stays_broken": _ALONE,
    "one_machine_fewer_devices": _ALONE,
    "hang": "the limit learned is a minute; hang_limit_of_the_document shows the same sooner",
    "elastic_grows_again": _PLACES,
    "elastic_number_that_does_not_work": _PLACES,
    "elastic_too_few_nodes": _PLACES,
    "no_spare": _PLACES,
}
DONE_HERE = ("kill", "hang", "node-down", "add-node", "device that stays as it is")
"""Faults that a rank, a node, an autoscaler or a device plugin can be the cause of in any cluster."""
LEVELS: Mapping[str, str] = {
    "critical": "SeparateNPU",
    "warning": "NotHandleFault",
    "81AD8605": "SubHealthFault",
    "110001024": "PreSeparateNPU",
}
"""What a device plugin reports of a fault whose line ends with this word."""

NOT_DONE: Mapping[str, str] = {
    "device": "what heals by itself heals by the clock, and NVIDIA's codes are not in these messages",
    "clear": "it comes minutes later, by the clock",
    "kill-agent": "the words are a kubelet's, the place the scheduler's: test_lost_pods",
    "maintenance": "a drain or a taint of an autoscaler is what does it: test_disruptions",
    "node-up": "it comes minutes later, by the clock",
    "partition": "a node is given up minutes later, by the clock: test_lost_pods",
    "preempt": "the scheduler does it, in words of its own: test_disruptions",
    "silence": "an agent is waited for for minutes, by the clock: test_lost_pods",
    "storage": "no fact of this cluster says so: it is seen by ranks, which end",
}
"""Faults that cannot happen here as on the fake cluster, and what shows them instead."""


def why_not(scenario: Scenario) -> str:
    """Why the scenario cannot be played here; empty if it can."""
    faults = [_fault_of(fault.text) for fault in scenario.faults]
    reasons = (NOT_DONE[fault] for fault in faults if fault not in DONE_HERE)
    return ELSEWHERE.get(scenario.path.stem, "") or next(reasons, "")


def _fault_of(line: str) -> str:
    words = line.split()
    words = words[5:] if words[:2] == ["at", "step"] else words[2:]
    if words[0] == "device" and words[-1] in LEVELS:
        return "device that stays as it is"
    return "partition" if "partition" in words else words[0]


class InPods(OnProcesses):
    """With one namespace, and nodes for it alone."""

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
        self.naming: asyncio.Task[None] | None = None

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
        if course.ends_long_after:
            limits["requeue_s"] = STILL_S
        return {
            "cluster": CLUSTER,
            "image": IMAGE,
            "command": ["/usr/bin/env", "python3", "-I", "-S", f"{STORAGE}/{SCRIPT.name}"],
            "model_dir": f"{STORAGE}/out",
            "checkpoints": {"path": f"{STORAGE}/out/ckpt"},
            "accelerator": "none",
            "accelerators_per_node": 0,
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
        items: Sequence[Json] = (await self.api.get(path))["items"]
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
            case "node-down", [name]:
                node = self.node_of[name]
                self.nodes.discard(node)
                await self.machines.remove_node(node)
            case "device", [name, index, code]:
                level = LEVELS[fault.one_of(("critical", "warning")) or code]
                one = device_fault(code, device=f"Ascend910-{index}", level=level)
                node = self.node_of[name]
                await self.machines.fault("device-config-map", node=node, device_info=info(one))
            case "add-node", [name]:
                self.node_of[name] = f"{self.namespace}-{name}"
                await self._add_node(self.node_of[name])
            case _:
                raise AssertionError(f"{fault.line} cannot be done here")

    async def _submitted(self, *words: Any) -> WorkflowHandle[Any, Any]:
        self.naming = asyncio.create_task(self._go_on_naming())
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
                first = f"n{labels[names.SLOT]}" if labels[names.GENERATION] == "1" else ""
                name = first if first in self.unused else self.unused[0]
                self.unused.remove(name)
                self.node_of[name] = node

    async def _tell(self, job: WorkflowHandle[Any, Any], cue: Cue) -> None:
        args = {key: self.node_of.get(str(value), value) for key, value in cue.args.items()}
        await super()._tell(job, replace(cue, args=args))

    def _signal(self, rank: str, number: int) -> None:
        marks = {f"EVERSTEP_JOB={JOB}".encode(), f"RANK={rank}".encode()}
        for pid in processes_marked(marks, script=SCRIPT.name):
            if Path(f"/proc/{pid}/root{STORAGE}").samefile(self.home):
                os.kill(pid, number)

    # -- afterwards ------------------------------------------------------------------------------

    async def _left(self) -> Sequence[str]:
        return [pod["metadata"]["name"] for pod in await self._pods()]

    async def _clean_up(self) -> None:
        if self.naming is not None:
            self.naming.cancel()
            await asyncio.wait([self.naming])
        while self.nodes:
            await self.machines.remove_node(self.nodes.pop())

    def sense(self, played: Played) -> list[str]:
        """The sense of the course, with nodes as on the fake cluster."""
        names_of = {node: name for name, node in self.node_of.items()} | SENTENCES
        lines = sense_of_all(played)
        for ours in sorted(names_of, key=len, reverse=True):
            lines = [line.replace(ours, names_of[ours]) for line in lines]
        return [_sorted(line) for line in lines]


def _sorted(line: str) -> str:
    """Nodes that are isolated are in the order of their names, which are others here."""
    what, colon, nodes = line.partition("isolated: ")
    return line if what else f"{what}{colon}{' '.join(sorted(nodes.split()))}"


def anywhere(lines: Sequence[str]) -> list[str]:
    """The same without which nodes it were, and that new pods wait for them at the moment of a status."""
    courses = (NODE_NAME.sub("a node", line) for line in lines if not line.startswith("  from {"))
    return [line.replace("; waiting for places", "") for line in courses]


def sense_of_all(played: Played) -> list[str]:
    """What of a course is the same whoever schedules pods."""
    lines = (WAITS.sub(r"\1 places", line) for line in sense(played))
    return [OF_DEVICES.sub("a device is faulty", line) for line in lines]
