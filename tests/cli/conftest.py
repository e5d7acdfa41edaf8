"""The command line, called in this process: what it printed and how it ended."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from everstep.cli.main import main
from everstep.processes import free_port
from tests.cli.standin import document
from tests.support.devserver import DevServer
from tests.support.patience import HUNG_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One command's end."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The error: exactly one line, and nothing else was printed."""
        assert self.out == ""
        (line,) = self.err.splitlines()
        return line.removeprefix("everstep: ")


Cli = Callable[..., Ended]
AsyncCli = Callable[..., Awaitable[Ended]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """`everstep ...`, with nothing of the machine's own settings and no server to be found."""
    for name in [n for n in os.environ if n.startswith(("TEMPORAL_", "EVERSTEP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("EVERSTEP_PATIENCE_S", str(HUNG_S))
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))

    def call(*argv: str, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main(argv)
        printed = capsys.readouterr()
        return Ended(code=code, out=printed.out, err=printed.err)

    return call


@pytest.fixture
def served(
    cli: Cli, server: DevServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncCli:
    """The same, with the test's own namespace of the real server behind it."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", namespace)

    async def call(*argv: str, stdin: bytes = b"") -> Ended:
        return await asyncio.to_thread(cli, *argv, stdin=stdin)

    return call


async def submitted(served: AsyncCli, body: dict[str, Any], *options: str) -> Ended:
    return await served("submit", "-", *options, stdin=json.dumps(body).encode())


async def ended(served: AsyncCli, client: Client, end: str, name: str = "demo") -> None:
    """A job of that name that has come to that end."""
    assert (await submitted(served, document(name, end=end))).code == 0
    try:
        await client.get_workflow_handle(name).result()
    except WorkflowFailureError:
        assert end in ("failed", "invalid")


async def until(claim: Callable[[], Awaitable[bool]]) -> None:
    """Visibility follows a little later."""
    async with asyncio.timeout(HUNG_S):
        while not await claim():
            await asyncio.sleep(0.05)
