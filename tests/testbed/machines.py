"""Machines for a cluster: the process kubelet, as tests and the demo start it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

from tests.support.child import Child
from tests.support.patience import HUNG_S
from tests.testbed.controlplane import ClusterAccess

ROOT = Path(__file__).resolve().parents[2]

_POWER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""A process namespace: when its first process is killed, nothing in it is left."""


class FaultRefused(AssertionError):
    """The kubelet could not do what a test wanted of it."""


class Machines:
    """Some nodes with their kubelets. All processes of all their pods end with the test run."""

    def __init__(self, access: ClusterAccess, folder: Path) -> None:
        folder.mkdir(parents=True)
        access_file = folder / "access.json"
        access_file.write_text(access.to_json())
        self._socket = folder / "control.sock"
        self.child = Child(
            [
                *_POWER,
                sys.executable,
                "-m",
                "tests.testbed.kubelet",
                str(access_file),
                str(folder),
            ],
            name="process kubelet",
            log=folder / "kubelet.log",
            cwd=ROOT,
        )

    @classmethod
    async def start(cls, access: ClusterAccess, folder: Path) -> Self:
        if os.geteuid() != 0:
            raise PermissionError("the process kubelet mounts volumes: run it as root")
        machines = cls(access, folder)
        try:
            await machines.child.until(machines._answers, within_s=HUNG_S)
        except BaseException:
            machines.stop()
            raise
        return machines

    async def add_node(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, str] | None = None,
        is_hollow: bool = False,
        lease_every_s: float | None = None,
    ) -> None:
        """Return when the node has posted that it is ready."""
        options: dict[str, object] = {"labels": labels, "resources": resources}
        options |= {"is_hollow": is_hollow, "lease_every_s": lease_every_s}
        await self._do(
            "add-node", {"name": name} | {k: v for k, v in options.items() if v is not None}
        )

    @asynccontextmanager
    async def nodes(
        self,
        labels_of: Mapping[str, Mapping[str, str]],
        *,
        resources: Mapping[str, str] | None = None,
    ) -> AsyncIterator[None]:
        """More nodes, by name, which are removed also when a test fails with them."""
        async with AsyncExitStack() as added:
            for name, labels in labels_of.items():
                await self.add_node(name, labels=labels, resources=resources)
                added.push_async_callback(self.remove_node, name)
            yield

    async def remove_node(self, name: str) -> None:
        """Take a node away with its processes and its object."""
        await self._do("remove-node", {"name": name})

    async def restore(self, labels_of: Mapping[str, Mapping[str, str]]) -> None:
        """Have these nodes, by name, as they are when they are added, and no others. Repeatable."""
        specs = [{"name": name, "labels": labels} for name, labels in labels_of.items()]
        await self._do("restore", {"nodes": specs})

    async def fault(self, fault: str, **arguments: object) -> None:
        """Let a fault of `tests.testbed.kubelet.faults` happen; return when it has."""
        await self._do(fault, arguments)

    def stop(self) -> None:
        """Power off: all processes are gone. Safe to repeat."""
        self.child.kill()

    async def _do(self, name: str, arguments: dict[str, Any]) -> None:
        async with asyncio.timeout(HUNG_S):
            reader, writer = await asyncio.open_unix_connection(self._socket)
            writer.write(json.dumps({"do": name, "with": arguments}).encode() + b"\n")
            reply = json.loads(await reader.readline())
            writer.close()
            await writer.wait_closed()
        if reply:
            raise FaultRefused(reply["error"])

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(self._socket)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        writer.close()
        await writer.wait_closed()
        return True
