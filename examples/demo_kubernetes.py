"""The demo on Kubernetes: `python -m examples.demo_kubernetes`.

A real API server, scheduler and controllers on loopback; nodes that run containers as processes of this
machine (tests/testbed); the workers as deploy/kubernetes has them, with its rights. The same training as in
examples/demo.py meets three faults and ends with the same weights. Nothing is left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import Client

from everstep import devserver, processes
from everstep.converter import data_converter
from everstep.processes import Process, environment
from examples import demo
from examples.demo import JOB, Broken, Stage, Trouble
from tests.support.child import ChildFailed
from tests.testbed.controlplane import BinariesMissing, ControlPlane
from tests.testbed.machines import FaultRefused, Machines
from tests.testbed.operator import WORKER, Kubectl, KubectlFailed, write_overlay

NAMESPACE = "everstep"
CLUSTER = "pods"
NODES = 5  # for the four pods of the job: one to spare
ROLE = "example.test/role"
STORAGE = "/storage"
"""Where the pods mount the folder that is their shared volume."""
QUIET_START_S = 20.0
"""So long all takes to start on a machine that does nothing else."""
SLOWER_STEPS = 3.0
"""Than on one machine: what the pods are after a fault is shown before the next one."""
REMOVED_S = 60.0
COLUMNS = ",".join(f"everstep.dev/{label}" for label in ("job", "phase", "slot", "generation"))

RANK_KILLED = Trouble(step=30, fault="kill -9, rank 2", meaning="a training process is killed")
CONTAINER_KILLED = Trouble(
    step=60, fault="SIGKILL, container of slot 1", meaning="a container is killed"
)
NODE_LOST = Trouble(
    step=90, fault="power off, node object deleted", meaning="a node is lost, which slot 3 is on"
)
LAST_LOOK = Trouble(step=91, fault="", meaning="")
TROUBLES = (RANK_KILLED, CONTAINER_KILLED, NODE_LOST, LAST_LOOK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster of one demo."""

    kubectl: Kubectl
    machines: Machines
    kubeconfig: str

    async def show_pods(self, stage: Stage) -> None:
        words = ("get", "pods", "-l", f"everstep.dev/job={JOB}", "-L", COLUMNS)
        stage.say("look", shlex.join(("kubectl", "-n", NAMESPACE, *words)))
        printed = await self.kubectl(*words, "-o", "wide", warns=True)
        print("\n".join(f"{'':11}{line}" for line in _brief(printed)), flush=True)

    async def pod(self, slot: int) -> Mapping[str, Any]:
        words = ("get", "pods", "-l", f"everstep.dev/slot={slot}", "-o", "json")
        items: list[dict[str, Any]] = json.loads(await self.kubectl(*words))["items"]
        return items[-1]

    async def strike(self, stage: Stage, trouble: Trouble) -> None:
        """Show the pods as they are, then let it happen."""
        await self.show_pods(stage)
        if trouble is LAST_LOOK:
            return
        stage.say("fault", f"{trouble.meaning}: {trouble.fault}")
        match trouble:
            case _ if trouble is RANK_KILLED:
                os.kill(_rank(2), signal.SIGKILL)
            case _ if trouble is CONTAINER_KILLED:
                name = (await self.pod(1))["metadata"]["name"]
                await self.machines.fault("container-kill", namespace=NAMESPACE, pod=name)
            case _:
                await self.machines.remove_node((await self.pod(3))["spec"]["nodeName"])

    async def until_no_pod_is_left(self, stage: Stage) -> None:
        selector = f"everstep.dev/job={JOB}"
        within = f"--timeout={REMOVED_S:.0f}s"
        await self.kubectl("wait", "--for=delete", "pods", "-l", selector, within)
        stage.say("look", "no pod of the job is left")


def _brief(table: str) -> list[str]:
    """Of a wide table of pods the columns that tell something here."""
    heading, *_ = lines = table.splitlines()
    kept = ("NAME", "STATUS", "AGE", "NODE", "JOB", "PHASE", "SLOT", "GENERATION")
    names = ("NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE", "NOMINATED NODE")
    starts = [heading.index(name) for name in (*names, "READINESS GATES", "JOB", "PHASE", "SLOT")]
    starts.append(heading.index("GENERATION"))
    cells = [
        [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
        for line in lines
    ]
    columns = [n for n, cell in enumerate(cells[0]) if cell in kept]
    widths = {n: max(len(row[n]) for row in cells) for n in columns}
    return ["  ".join(row[n].ljust(widths[n]) for n in columns).rstrip() for row in cells]


def _rank(rank: int) -> int:
    """The process of a rank, wherever on this machine its pod runs."""
    marks = {f"EVERSTEP_JOB={JOB}".encode(), f"RANK={rank}".encode()}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_it = marks <= set((entry / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if is_it:
            return int(entry.name)
    raise Broken(f"no process is rank {rank}")


def on_pods(body: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The document of the demo with an image, and a volume where its folders are."""
    spec = body["spec"]
    out = f"{STORAGE}/out"
    volume = {"name": "storage", "hostPath": {"path": str(folder)}}
    mount = {"name": "storage", "mountPath": STORAGE}
    pod = {
        "nodeSelector": {ROLE: "training"},
        "volumes": [volume],
        "containers": [{"name": "train", "volumeMounts": [mount]}],
    }
    changes = {
        "cluster": CLUSTER,
        "image": "machine",
        "command": ["python3", "train.py"],
        "workdir": STORAGE,
        "model_dir": out,
        "checkpoints": {"path": f"{out}/ckpt"},
        "env": {**spec["env"], "CHECKPOINTS": f"{out}/ckpt"},
        "pod_template": {"spec": pod},
    }
    return {**body, "spec": {**{k: v for k, v in spec.items() if k != "limits"}, **changes}}


@asynccontextmanager
async def cluster_of(stage: Stage) -> AsyncIterator[Cluster]:
    """A control plane with its nodes; all of it ends with this context."""
    control_plane = await ControlPlane.start(stage.directory / "control-plane")
    try:
        access = control_plane.access
        stage.say("cluster", f"API server, etcd, controllers and scheduler at {access.url}")
        machines = await Machines.start(access, stage.directory / "machines")
        try:
            roles = {"node-w": "workers"} | {f"node-{n}": "training" for n in range(NODES)}
            for name, role in roles.items():
                await machines.add_node(name, labels={ROLE: role})
            stage.say("nodes", f"{' '.join(roles)}: containers are processes of this machine")
            kubectl = Kubectl(access, NAMESPACE, stage.directory)
            yield Cluster(kubectl=kubectl, machines=machines, kubeconfig=access.kubeconfig)
        finally:
            machines.stop()
    finally:
        control_plane.kill()


async def install(stage: Stage, cluster: Cluster, *, server: str) -> None:
    """The workers, as an operator brings them into a cluster."""
    settings = {"EVERSTEP_CLUSTER": CLUSTER, "TEMPORAL_ADDRESS": server}
    pod = {"nodeSelector": {ROLE: "workers"}}
    overlay = write_overlay(stage.directory / "overlay", NAMESPACE, settings, pod)
    kubectl = cluster.kubectl
    stage.say("install", f"kubectl create namespace {NAMESPACE}")
    await kubectl("create", "namespace", NAMESPACE)
    stage.say("install", "kubectl apply -k overlay, which puts deploy/kubernetes into this cluster")
    await kubectl("apply", "-k", str(overlay))
    within = f"--timeout={demo.JOB_S:.0f}s"
    await kubectl("rollout", "status", f"deployment/{WORKER}", within)
    stage.say("worker", f"deployment/{WORKER} is rolled out")


async def submit(stage: Stage, body: Mapping[str, Any], *, server: str) -> None:
    path = stage.directory / f"{JOB}.json"
    path.write_text(json.dumps(body, indent=2))
    stage.say("submit", f"everstep submit {path.name}")
    command = Process(
        [str(Path(sys.executable).with_name("everstep")), "submit", str(path)],
        name="everstep submit",
        log=stage.directory / "submit.log",
        env=environment(TEMPORAL_ADDRESS=server, EVERSTEP_HOME=str(stage.home)),
    )
    await command.succeeds(within_s=demo.START_S)


async def play(stage: Stage, *, keep: bool) -> None:
    folder = stage.directory / "together"
    folder.mkdir()
    shutil.copy(demo.EXAMPLE / "train.py", folder)
    for path in (stage.directory, folder):
        path.chmod(0o777)  # the ranks are another user
    for trouble in TROUBLES[:-1]:
        stage.say("", f"from step {trouble.step} on: {trouble.meaning}")
    async with cluster_of(stage) as cluster:
        server = await devserver.start(stage.directory)
        stage.say("server", f"Temporal at {server.address}, its UI at {server.ui}")
        await install(stage, cluster, server=server.address)
        slower = min(max(1.0, stage.passed_s / QUIET_START_S), demo.SLOWEST)
        body = demo.document(folder, slowness=SLOWER_STEPS * slower)
        client = await Client.connect(server.address, data_converter=data_converter())
        await submit(stage, on_pods(body, folder), server=server.address)
        alone = asyncio.create_task(demo.undisturbed(stage, body))
        async with asyncio.timeout(demo.JOB_S * slower):
            last = await demo.follow(stage, client, TROUBLES, cluster.strike)
            expected = await alone
        demo.conclude(last, folder, alone=expected)
        await cluster.until_no_pod_is_left(stage)
        variables = exports(stage, cluster, server=server.address)
        closing = demo.closing(server.ui, variables, keep=keep, recipe="demo-kubernetes")
        print("\n".join(closing), flush=True)
        if keep:
            await asyncio.Event().wait()


def exports(stage: Stage, cluster: Cluster, *, server: str) -> dict[str, str]:
    """Variables with which commands elsewhere find this server and this cluster."""
    folders = f"{Path(sys.executable).parent}:{cluster.kubectl.binary.parent}"
    return {
        "TEMPORAL_ADDRESS": server,
        "EVERSTEP_HOME": shlex.quote(str(stage.home)),
        "KUBECONFIG": shlex.quote(cluster.kubeconfig),
        "PATH": f'"$PATH:{folders}"',
    }


async def run(*, keep: bool) -> None:
    processes.end_on(signal.SIGTERM, signal.SIGHUP)
    print("A training of two phases in four pods of a cluster, and three faults on their way.\n")
    with tempfile.TemporaryDirectory(prefix="everstep-demo-") as directory:
        stage = Stage(directory=Path(directory))
        try:
            await play(stage, keep=keep)
        except (BinariesMissing, ChildFailed, FaultRefused, KubectlFailed) as error:
            raise Broken(str(error)) from None
        finally:
            processes.end_all()
            print(f"\nEvery process is ended. {stage.passed_s:.1f} s in all.")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo_kubernetes", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="stay until Ctrl-C, to look around")
    return demo.exit_code_of(run(keep=parser.parse_args(arguments).keep))


if __name__ == "__main__":
    demo.leave(main())
