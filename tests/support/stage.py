"""A whole Everstep for one test: a namespace, a fake cluster, a real worker.

Cluster and worker live in the process of the test, where they begin at once. A test that kills or freezes
the worker takes `StageOfProcesses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from temporalio.client import WorkflowHandle

from everstep.backends.base import Backend
from everstep.backends.fake.backend import Admin, FakeBackend
from everstep.backends.fake.server import FakeServer
from everstep.backends.fake.settings import FakeSettings
from everstep.plugin import ensure_janitor, plugin_of
from everstep.worker_settings import WorkerSettings
from tests.support.at_work import at_work, submit
from tests.support.devserver import DevServer
from tests.support.workerproc import WorkerProcess
from worker import workers

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
    """Fake cluster and worker in this process, and a client that sees both."""

    fake: Backend
    admin: Admin

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
        self.nodes = nodes
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.client = await self.server.connect(self.namespace)
        try:
            await self.begin()
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._open.__aexit__(kind, error, trace)

    async def begin(self) -> None:
        """Begin with cluster and worker; what has to end with the stage is entered into `_open`."""
        fake = FakeBackend(FakeSettings(nodes=self.nodes))
        self.fake, self.admin = fake, fake.admin
        settings_of_env = {
            name.removeprefix("EVERSTEP_").lower(): value for name, value in self.env.items()
        }
        settings = WorkerSettings.model_validate(
            {"backend": "fake", "cluster": self.cluster, **settings_of_env}
        )
        if settings.janitor:
            await ensure_janitor(self.client, self.cluster)
        # Nothing reads what a job does while its stage ends.
        plugin = plugin_of(self.client, fake, settings, grace=timedelta(0))
        pair = workers(self.client, plugin)
        await self._open.enter_async_context(at_work(*pair))

    async def submit(self, body: Any, *, job_id: str | None = None) -> Handle:
        """The job, as `everstep submit` starts it."""
        return await submit(self.client, body, job_id=job_id)


class StageOfProcesses(Stage):
    """A stage with the worker in a process of its own: to be killed, frozen, measured."""

    worker: WorkerProcess

    async def begin(self) -> None:
        fake = FakeBackend(FakeSettings(nodes=self.nodes))
        self.fake, self.admin = fake, fake.admin
        listening = FakeServer(fake).listening("127.0.0.1", 0)
        host, port = await self._open.enter_async_context(listening)
        self.fake_address = f"{host}:{port}"
        self.worker = self.new_worker()
        self._open.push(self._end_of_worker)
        await self.worker.start()

    def _end_of_worker(self, kind: type[BaseException] | None, *_: object) -> None:
        self.worker.kill9()
        if kind is None:
            assert self.worker.stuck_tasks() == []

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
