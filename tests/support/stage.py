"""A whole Everstep for one test: a namespace, a fake cluster in its own process, a real worker."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from everstep.backends.fake.client import FakeClient
from everstep.converter import DATA_CONVERTER
from everstep.core import names
from tests.support.child import Child
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S
from tests.support.workerproc import ROOT, WorkerProcess
from workflows import options

FAKE_READY = "everstep fake cluster ready "
Handle = WorkflowHandle[Any, dict[str, Any]]


def document(name: str = "demo", **spec: Any) -> dict[str, Any]:
    """A small native job: four nodes, a step a second, a checkpoint every ten steps."""
    env = {"STEPS": "100", **spec.pop("env", {})}
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "command": ["python", "train.py"],
            "nodes": 4,
            "accelerators_per_node": 8,
            "accelerator": "simulated",
            "env": env,
            "model_dir": f"out/{name}",
            "checkpoints": {"path": f"out/{name}/ckpt"},
            **spec,
        },
    }


class Stage:
    """Fake cluster and worker in processes of their own, and a client that sees both."""

    def __init__(
        self,
        server: DevServer,
        namespace: str,
        home: Path,
        *,
        nodes: int = 6,
        cluster: str = "local",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.env = env or {}  # of every worker
        self.server = server
        self.namespace = namespace
        self.home = home
        self.cluster = cluster
        self._nodes = nodes
        self._fake: Child | None = None
        self.fake_address = ""

    async def __aenter__(self) -> Self:
        await self.start_fake()
        self.fake = FakeClient(self.fake_address)
        self.admin = self.fake.admin
        self.client = await Client.connect(
            self.server.address, namespace=self.namespace, data_converter=DATA_CONVERTER
        )
        self.worker = self.new_worker()
        await self.worker.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.worker.kill9()
        await self.fake.close()
        if self._fake is not None:
            self._fake.kill()
        if kind is None:
            assert self.worker.wedged() == []

    async def start_fake(self) -> None:
        command = [sys.executable, "-m", "everstep.backends.fake.server"]
        self._fake = Child(
            [*command, "--nodes", str(self._nodes)],
            name="fake",
            log=self.home / f"fake-{self.cluster}.log",
            env=None,
            cwd=ROOT,
        )
        await self._fake.until(self._fake_is_ready, within_s=HUNG_S)

    async def _fake_is_ready(self) -> bool:
        assert self._fake is not None
        lines = self._fake.output().splitlines()
        found = [line for line in lines if line.startswith(FAKE_READY)]
        self.fake_address = found[0].removeprefix(FAKE_READY).strip() if found else ""
        return bool(found)

    def new_worker(
        self, name: str = "worker", env: Mapping[str, str] | None = None
    ) -> WorkerProcess:
        """One more worker of this cluster, not started yet."""
        return WorkerProcess(
            address=self.server.address,
            namespace=self.namespace,
            home=self.home / f"{name}-{self.cluster}",
            fake_address=self.fake_address,
            cluster=self.cluster,
            env={**self.env, **(env or {})},
        )

    async def submit(self, body: Any, *, job_id: str | None = None) -> Handle:
        """The job, as `everstep submit` starts it."""
        return await self.client.start_workflow(
            names.TRAINING_JOB,
            body,
            id=job_id or body["metadata"]["name"],
            task_queue=names.TASK_QUEUE,
            task_timeout=options.TASK_TIMEOUT,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        )
