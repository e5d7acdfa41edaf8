"""The real Temporal server, as a child of the test run: started, killed and started again at will."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from everstep.converter import data_converter
from everstep.devserver import PRAGMAS, TUNED
from everstep.processes import free_port
from tests.support.child import Child, ChildFailed
from tests.support.patience import HUNG_S

SEARCH_ATTRIBUTES: Mapping[str, str] = {
    "TrainJob": "Keyword",
    "TrainState": "Keyword",
    "TrainPhase": "Keyword",
    "TrainCluster": "Keyword",
    "FaultClass": "Keyword",
    "FaultCode": "Keyword",
    "RecoveryLevel": "Keyword",
    "RecoveryResult": "Keyword",
    "Restarts": "Int",
    "LastStep": "Int",
    "FaultNodes": "KeywordList",
    "IsolatedNodes": "KeywordList",
}

FOR_MANY_NAMESPACES: Mapping[str, str] = {"worker.perNamespaceWorkerCount": "0"}
"""The server starts no workers of its own in each namespace: these are for schedules, which no test uses.

With 80 namespaces they take 1.6 % of a processor for as long as the server lives instead of 0.6 %.
"""

ONE_PARTITION: Mapping[str, str] = {
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
}
"""Each task queue has one partition: of the usual four, one forwards tasks and polls to another."""

ONE_PROCESSOR: Mapping[str, str] = {"GOMAXPROCS": "1", "GOGC": "400"}
"""Its threads do not search idle processors for work, and it collects garbage less often.

With both and one partition, a job that loses a node takes 0.23 s of the server's processor time, not 0.31 s.
"""


class DevServer:
    """One `temporal server start-dev` on loopback.

    Without a `db_file` it forgets everything when it is killed; with one, `restart` comes back on
    the same port with all namespaces, workflows and search attributes.
    """

    def __init__(
        self,
        *,
        port: int,
        ui_port: int | None,
        db_file: Path | None,
        log: Path | None,
        settings: Mapping[str, str],
        pragmas: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> None:
        self.port = port
        self.ui_port = ui_port
        self.db_file = db_file
        self.settings = settings
        self.pragmas = pragmas
        self.environment = environment
        self._scratch = tempfile.TemporaryDirectory(prefix="everstep-test-")
        self.log = log or Path(self._scratch.name, "temporal.log")
        self._child: Child | None = None

    @classmethod
    async def start(
        cls,
        *,
        db_file: Path | None = None,
        stock: bool = False,
        ui: bool = False,
        port: int | None = None,
        log: Path | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """A server that answers. `stock`: with the server's own settings instead of `TUNED`.

        `settings` are more of its dynamic configuration, name to JSON; `environment` is added to ours.
        """
        while True:
            server = cls(
                port=port or free_port(),
                ui_port=free_port() if ui else None,
                db_file=db_file,
                log=log,
                settings={**({} if stock else {**TUNED, **FOR_MANY_NAMESPACES}), **settings},
                pragmas={} if stock else PRAGMAS,
                environment=environment,
            )
            try:
                await server.restart()
            except ChildFailed as error:
                server.stop()
                # Another process may have taken the port since we looked; one given to us stays.
                if port or "address already in use" not in str(error):
                    raise
            else:
                return server

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    async def restart(self) -> None:
        """Kill it if it lives, start it on the same port, return when it answers."""
        self.kill()
        self._child = Child(
            self._command(),
            name="temporal server",
            log=self.log,
            env={**os.environ, **self.environment},
        )
        try:
            await self._child.until(self._answers, within_s=HUNG_S)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL to the server alone. Safe to repeat."""
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        """The end. Nothing is lost by a kill: the database is written before an answer is given."""
        self.kill()
        self._scratch.cleanup()

    async def connect(self, namespace: str = "default", **options: Any) -> Client:
        """A client with our converter, and with the keys that the environment names."""
        return await Client.connect(
            self.address, namespace=namespace, data_converter=data_converter(), **options
        )

    async def bare_namespace(self, name: str, *, kept_for: timedelta = timedelta(days=1)) -> Client:
        """A client of this server, and a new namespace that lacks our search attributes.

        Workflows are forgotten so long after their end.
        """
        client = await self.connect()
        retention = Duration()
        retention.FromTimedelta(kept_for)
        await client.workflow_service.register_namespace(
            RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=retention)
        )
        return client

    async def new_namespace(
        self, hint: str = "test", *, kept_for: timedelta = timedelta(days=1)
    ) -> str:
        """A namespace of one's own with our search attributes; usable at once (about 50 ms)."""
        name = f"{hint}-{secrets.token_hex(4)}"
        client = await self.bare_namespace(name, kept_for=kept_for)
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=name, search_attributes=_as_enums())
        )
        return name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    def _command(self) -> list[str]:
        command = [temporal_binary(), "server", "start-dev", "--log-level", "error"]
        command += ["--ip", "127.0.0.1", "--port", str(self.port)]
        command += ["--ui-port", str(self.ui_port)] if self.ui_port else ["--headless"]
        if self.db_file:
            command += ["--db-filename", str(self.db_file)]
            for name, value in self.pragmas.items():
                command += ["--sqlite-pragma", f"{name}={value}"]
        for name, kind in SEARCH_ATTRIBUTES.items():
            command += ["--search-attribute", f"{name}={kind}"]
        for key, value in self.settings.items():
            command += ["--dynamic-config-value", f"{key}={value}"]
        return command

    async def _answers(self) -> bool:
        """True once the default namespace has every search attribute: the last thing it sets up."""
        try:
            client = await self.connect()
            reply = await client.operator_service.list_search_attributes(
                ListSearchAttributesRequest(namespace="default")
            )
        except (RPCError, RuntimeError):  # RuntimeError: nobody listens yet
            return False
        return SEARCH_ATTRIBUTES.keys() <= reply.custom_attributes.keys()


async def temporal(*words: str) -> tuple[int, str]:
    """Run the `temporal` command line: its exit code and all its output."""
    process = await asyncio.create_subprocess_exec(
        temporal_binary(), *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), HUNG_S)
    assert process.returncode is not None
    return process.returncode, output.decode()


START = (
    *("workflow", "start", "--type", "TrainingJob", "--task-queue", "everstep"),
    *("--id-reuse-policy", "RejectDuplicate", "--fail-existing", "--task-timeout", "3s"),
)
"""Starts a job as README says it; its ID and its document are to be named."""


def temporal_binary() -> str:
    """The `temporal` executable: of our own environment first, else of the machine."""
    beside_python = Path(sys.executable).with_name("temporal")
    program = str(beside_python) if beside_python.exists() else shutil.which("temporal")
    if program is None:
        raise FileNotFoundError("no `temporal` executable here; `make setup` installs one")
    return program


def _as_enums() -> dict[str, IndexedValueType.ValueType]:
    names = {"Keyword": "KEYWORD", "Int": "INT", "KeywordList": "KEYWORD_LIST"}
    return {
        name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{names[kind]}")
        for name, kind in SEARCH_ATTRIBUTES.items()
    }
