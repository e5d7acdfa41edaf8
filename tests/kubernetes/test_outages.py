"""What happens to jobs while workers are killed and the API server goes away in mid-recovery.

Everything is real: the command line, workers as processes, a control plane of this file's own, which is
killed, stopped and made to forget. Only so it shows that no recovery is lost and none is made twice.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from everstep.core.levels import Level
from tests.backends.lab import order_end
from tests.kubernetes import rights
from tests.kubernetes.jobs import set_writable
from tests.kubernetes.objects import until
from tests.kubernetes.site import Site
from tests.kubernetes.test_device_info import CODE, fault, info
from tests.kubernetes.test_reflector import compact
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.workerproc import WorkerProcess
from tests.testbed.api import Api
from tests.testbed.controlplane import ControlPlane, until_pods_can_be_created
from tests.testbed.machines import Machines

pytestmark = pytest.mark.long

FIGURES = logging.getLogger("figures")

STEPS = ("stop", "resume", "start")
"""The steps of a restart in place."""
OUTAGE_S = 60.0
"""The API server is away for so long: nothing that ends earlier shows that it may be as long."""
BUSY_MOST = 0.3
"""Largest share of a processor."""
JOB, SOUND = "hit", "sound"
STEP_S = 0.1


@dataclass
class Scene:
    """A cluster of four nodes with two jobs, of which one stays sound."""

    plane: ControlPlane
    api: Api
    machines: Machines
    site: Site
    client: Client
    kubeconfig: str
    home: Path
    hits: int = 0
    reported: list[str] = field(default_factory=list)  # nodes, as faulty
    uids: frozenset[str] = frozenset()  # of the sound job

    def worker(self, name: str) -> WorkerProcess:
        return WorkerProcess(
            address=self.site.env["TEMPORAL_ADDRESS"],
            namespace=self.site.env["TEMPORAL_NAMESPACE"],
            home=self.home / name,
            cluster="pods",
            backend="kubernetes",
            env={
                "EVERSTEP_KUBECONFIG": self.kubeconfig,
                "EVERSTEP_KUBE_NAMESPACE": "default",
                "EVERSTEP_KUBE_DEVICE_INFO": "true",
            },
        )

    async def submit_both(self, **words: Any) -> None:
        """`words` are more of `Site.submit`."""
        for job in (JOB, SOUND):
            self.site.submit(job, STEPS="1000000", STEP_S=str(STEP_S), **words)
        for job in (JOB, SOUND):
            await until(partial(self.has_saved, job, 20))
        self.uids = await self.pods_of(SOUND)

    def has_saved(self, job: str, step: int) -> bool:
        return self.site.saved(job) >= step

    async def pods_of(self, job: str) -> frozenset[str]:
        pods = await self.api.get(
            "/api/v1/namespaces/default/pods", labelSelector=f"everstep.dev/job={job}"
        )
        return frozenset(pod["metadata"]["uid"] for pod in pods["items"])

    def crash(self, rank: int = 1) -> None:
        self.hits += 1
        order_end(self.site.storage / "control", JOB, rank=rank, code=3)

    def node_of(self, slot: int) -> str:
        nodes = {pod["slot"]: str(pod["node"]) for pod in self.site.status(JOB)["pods"]}
        return nodes[slot]

    def report_node(self, slot: int) -> None:
        """An operator reports the node of a pod as faulty: the pod moves to another one."""
        self.hits += 1
        node = self.node_of(slot)
        self.site.everstep("report-fault", JOB, "node.fault", "--node", node)
        self.reported.append(node)

    async def break_device(self) -> None:
        """A device plugin reports a fault that a reset may repair."""
        self.hits += 1
        broken = fault(CODE, level="RestartBusiness", at=int(time.time() * 1000))
        self.reported.append(self.node_of(1))
        await self.report_device(broken)

    async def report_device(self, *faults: Any) -> None:
        """All that the plugin of the node reported last reports."""
        report = info(*faults)
        await self.machines.fault("device-config-map", node=self.reported[-1], device_info=report)

    async def crash_without_progress(self) -> None:
        """Three times before there is another checkpoint: only the third restart waits before it begins.

        Rank 0 saves: while another rank crashes it may train on until the next checkpoint.
        """
        order = self.site.storage / "control" / f"{JOB}-0"
        for _ in range(3):
            await until(lambda: not order.exists())
            self.crash(rank=0)

    def isolated(self) -> list[str]:
        """Those that jobs isolated, in the order in which they did."""
        rows = json.loads(self.site.everstep("nodes", "--cluster", "pods", "--json"))
        isolated = [row for row in rows if row.get("by") == JOB]
        return [row["name"] for row in sorted(isolated, key=lambda row: str(row["since"]))]

    async def cordon(self, on: bool) -> None:
        for node in (await self.api.get("/api/v1/nodes"))["items"]:
            path = f"/api/v1/nodes/{node['metadata']['name']}"
            await self.api.patch(path, {"spec": {"unschedulable": on}})

    def waits_for(self, words: str) -> bool:
        return words in (self.site.status(JOB)["waiting_for"] or "")

    async def until_step(self, step: str) -> None:
        """Until the recovery of the newest crash began this step."""

        async def has_begun() -> bool:
            return step in await self.steps()

        await until(has_begun)

    async def steps(self) -> list[str]:
        """Those that the newest recovery began."""
        async for row in self.client.list_workflows("WorkflowType = 'Recovery'"):
            if row.id.startswith(f"{JOB}/main/recovery-{self.hits}-"):
                history = await self.client.get_workflow_handle(row.id).fetch_history()
                scheduled = (e.activity_task_scheduled_event_attributes for e in history.events)
                return [one.activity_type.name for one in scheduled if one.activity_type.name]
        return []

    async def is_recovered(self) -> bool:
        async for row in self.client.list_workflows("WorkflowType = 'Recovery'"):
            if row.status == WorkflowExecutionStatus.RUNNING:
                return False
        status = self.site.status(JOB)
        return bool(status["state"] == "running" and status["generation"] == self.hits + 1)

    async def until_recovered(self) -> None:
        await until(self.is_recovered)
        before = self.site.saved(JOB)
        await until(lambda: self.site.saved(JOB) > before)

    async def check(self) -> None:
        """Each crash had one restart, and the sound job none."""
        records: list[dict[str, Any]] = json.loads(self.site.everstep("restarts", JOB, "--json"))
        assert [record["n"] for record in records] == list(range(1, self.hits + 1))
        assert {record["recover_result"] for record in records} == {"success"}
        generations = [(one["generation"]["from"], one["generation"]["to"]) for one in records]
        assert generations == [(n, n + 1) for n in range(1, self.hits + 1)]
        # Unreachable for a moment after its worker was killed.
        await until(lambda: self.site.status(SOUND)["state"] == "running")
        status = self.site.status(SOUND)
        assert (status["generation"], status["restarts"]) == (1, 0)
        assert await self.pods_of(SOUND) == self.uids


@pytest.fixture
async def scene(server: DevServer, tmp_path: Path) -> AsyncIterator[Scene]:
    plane = await ControlPlane.start(tmp_path / "control-plane")
    try:
        async with plane.access.api() as api, machines_of(plane, tmp_path) as machines:
            await until_pods_can_be_created(api, "default")
            await rights.grant(api, "default")
            kubeconfig = await rights.kubeconfig(plane.access, api, "default", tmp_path / "config")
            temporal = await server.new_namespace(f"outages-{tmp_path.name[:40]}")
            site = Site.make(tmp_path, address=server.address, namespace=temporal)
            client = await server.connect(temporal)
            async with rights.to_read_device_info(api, "default"):
                yield Scene(plane, api, machines, site, client, kubeconfig, tmp_path)
    finally:
        plane.kill()


@asynccontextmanager
async def machines_of(plane: ControlPlane, folder: Path) -> AsyncIterator[Machines]:
    machines = await Machines.start(plane.access, folder / "machines")
    try:
        for number in range(4):
            await machines.add_node(f"m{number}")
        yield machines
    finally:
        machines.stop()


@contextmanager
def never_busy(worker: WorkerProcess) -> Iterator[None]:
    """The worker uses little of a processor meanwhile."""
    began, used = time.monotonic(), processor_s(worker.pid)
    yield
    share = (processor_s(worker.pid) - used) / (time.monotonic() - began)
    FIGURES.info("worker: %.1f %% of a core for %.0f s", 100 * share, time.monotonic() - began)
    assert share < BUSY_MOST


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_a_worker_that_is_killed_at_any_step_costs_no_second_recovery(scene: Scene) -> None:
    worker = await scene.worker("one").start()
    try:
        await scene.submit_both()
        for step in STEPS:
            scene.crash()
            await scene.until_step(step)
            await worker.restart()
            await scene.until_recovered()
        await scene.check()
        other = await scene.worker("two").start()
        try:
            scene.crash()
            await scene.until_step("stop")
            worker.kill9()
            began = time.monotonic()
            await scene.until_recovered()
            FIGURES.info("with another worker: %.1f s", time.monotonic() - began)
            await scene.check()
            assert other.stuck_tasks() == []
        finally:
            other.kill9()
    finally:
        worker.kill9()


async def test_a_worker_that_is_killed_while_it_places_or_isolates_does_neither_twice(
    scene: Scene,
) -> None:
    """No node takes pods until the worker is another one: the step to place is certainly under way."""
    worker = await scene.worker("one").start()
    try:
        await scene.submit_both()
        before = await scene.pods_of(JOB)
        await scene.cordon(True)
        scene.report_node(slot=1)
        await scene.until_step(PLACED[0])
        await worker.restart()
        await scene.cordon(False)
        await scene.until_recovered()
        after = await scene.pods_of(JOB)
        assert len(after) == 2
        assert len(after & before) == 1
        scene.report_node(slot=0)
        await scene.until_step(PLACED[1])
        await worker.restart()
        await scene.until_recovered()
        assert len(await scene.pods_of(JOB) & after) == 1
        await scene.check()
        assert scene.isolated() == scene.reported
        assert worker.stuck_tasks() == []
    finally:
        worker.kill9()


class Wait(NamedTuple):
    """A step of a recovery that waits, and what lets the wait begin and end."""

    step: str
    begin: Callable[[Scene], Awaitable[None]]
    end: Callable[[Scene], Awaitable[None]]


async def begin_to_heal(scene: Scene) -> None:
    await scene.break_device()
    await until(partial(scene.waits_for, "to heal"))


async def heal(scene: Scene) -> None:
    await until(partial(scene.waits_for, "to heal"))
    await scene.report_device()


STORAGE_WAIT = "the storage to be writable"


async def close_storage(scene: Scene) -> None:
    """The ranks end when they save next."""
    scene.hits += 1
    set_writable(scene.site.storage / JOB, False)
    await until(partial(scene.waits_for, STORAGE_WAIT))


async def open_storage(scene: Scene) -> None:
    await until(partial(scene.waits_for, STORAGE_WAIT))
    set_writable(scene.site.storage / JOB, True)


async def nothing(_scene: Scene) -> None:
    """It ends by itself."""


WAITS = (
    Wait("heal", begin_to_heal, heal),
    Wait("writable", close_storage, open_storage),
    Wait("space", Scene.crash_without_progress, nothing),
)
"""Beside `place`, which waits for nodes, and `standby`, which a job of MindCluster has: test_ascend_jobs."""
PLACED = ("place", "isolate")
KILLED_AT: Mapping[Level, tuple[str, ...]] = {
    Level.IN_PLACE: (*STEPS, *(wait.step for wait in WAITS)),
    Level.POD: PLACED,
}
"""Steps during which the worker is killed."""
A_NODE_EACH = {"resources": {"requests": {"cpu": "8"}}}


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.step)
async def test_a_worker_that_is_killed_while_a_recovery_waits_goes_on_with_that_wait(
    scene: Scene, wait: Wait
) -> None:
    """The other job is on other nodes, so the fault of a device is none of its own."""
    worker = await scene.worker("one").start()
    try:
        recovery = {"recovery": {"no_progress_restarts": None}}
        await scene.submit_both(train=A_NODE_EACH, more=recovery)
        await wait.begin(scene)
        await scene.until_step(wait.step)
        await worker.restart()
        await wait.end(scene)
        await scene.until_recovered()
        await scene.check()
        assert (await scene.steps()).count(wait.step) == 1
        assert worker.stuck_tasks() == []
    finally:
        worker.kill9()


def tries(scene: Scene) -> int:
    """How often the step under way failed, as the job shows it."""
    match = re.search(r"failed (\d+) times", scene.site.status(JOB)["waiting_for"] or "")
    return 0 if match is None else int(match[1])


async def test_an_api_server_that_is_killed_and_forgets_in_mid_recovery_holds_it_up_and_no_more(
    scene: Scene,
) -> None:
    worker = await scene.worker("one").start()
    try:
        await scene.submit_both()
        scene.crash()
        await scene.until_step("stop")
        scene.plane.child("kube-apiserver").kill()
        over_at = time.monotonic() + OUTAGE_S
        await compact(scene.plane)
        sound = scene.site.saved(SOUND)
        with never_busy(worker):
            await until(lambda: time.monotonic() >= over_at, within_s=OUTAGE_S + HUNG_S)
        # The step was tried all the time, and the sound job trained beside it.
        FIGURES.info("%d tries, %d steps beside", tries(scene), scene.site.saved(SOUND) - sound)
        assert tries(scene) >= OUTAGE_S / 2
        assert scene.site.saved(SOUND) >= sound + OUTAGE_S / STEP_S / 2
        await scene.plane.start_api_server()
        await scene.until_recovered()
        await scene.check()
        assert worker.stuck_tasks() == []
    finally:
        worker.kill9()


async def test_an_api_server_that_is_stopped_in_mid_recovery_holds_it_up_and_no_more(
    scene: Scene,
) -> None:
    """Connections stay open and nothing comes over them: requests and watches have to notice that."""
    worker = await scene.worker("one").start()
    try:
        await scene.submit_both()
        scene.crash()
        await scene.until_step("stop")
        scene.plane.child("kube-apiserver").send(signal.SIGSTOP)
        sound = scene.site.saved(SOUND)
        with never_busy(worker):
            await until(lambda: scene.site.saved(SOUND) >= sound + 200)
        scene.plane.child("kube-apiserver").send(signal.SIGCONT)
        await scene.until_recovered()
        await scene.check()
        assert worker.stuck_tasks() == []
    finally:
        worker.kill9()
