"""A Temporal server for one machine: on loopback, with our search attributes and UI.

It keeps its state in memory or in a file. A server for many machines is set up by its operators
(docs/operations/). This one has no authentication: its HTTP API is closed, its UI is behind our proxy, and
its gRPC port is open to every user of the machine.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError

from everstep.agent.storage import permissions
from everstep.core import names
from everstep.processes import Process, ProcessFailed, environment, free_port
from everstep.ui_proxy import UiProxy, hidden_address

START_S = 30.0
LOG = "temporal.log"
DATABASE = "temporal.db"

# The server's defaults protect a loaded cluster; here they only add latency. With these, timers below a
# second are exact, and a step costs no 50 ms of polling. The back-off of workflow tasks ends at 10 s: with
# the default, a `stop` waits 90 s after seven killed workers. With 2 s a busy machine never answered some
# tasks.
TUNED: Mapping[str, str] = {
    "history.timerProcessorMaxTimeShift": '"10ms"',
    "history.transferProcessorMaxPollRPS": "2000",
    "history.workflowTaskRetryMaxInterval": '"10s"',
}

# The HTTP API accepts requests of any web page and cannot be turned off. So it answers to one host name only,
# which no request can have.
CLOSED: Mapping[str, str] = {"frontend.httpAllowedHosts": '["closed.invalid"]'}

# What the server confirmed survives its end, however it ends. Only a machine that loses power may lose the
# newest moments, and then its processes are lost too. This halves the cost of a step.
PRAGMAS: Mapping[str, str] = {"journal_mode": "WAL", "synchronous": "NORMAL"}


class DevServer:
    """One `temporal server start-dev`; ended by `end`, and by the end of this process."""

    def __init__(
        self, directory: Path, *, port: int, ui_port: int, lock: int | None = None
    ) -> None:
        """Start the server.

        `lock`: the open lock of the directory, which the server holds too; its database is there. Without a
        lock the state is in memory.
        """
        self.port, self.ui_port = port, ui_port
        self.address = f"127.0.0.1:{port}"
        self.ui = f"http://127.0.0.1:{ui_port}"
        hidden = (hidden_address(), free_port())
        self._proxy = UiProxy(port=ui_port, ui_host=hidden[0], ui_port=hidden[1])
        database = None if lock is None else directory / DATABASE
        self._command = _command(port=port, ui=hidden, database=database)
        self._directory = directory
        self._keeps_open = () if lock is None else (lock,)
        self._process = self._launch()

    def _launch(self) -> Process:
        return Process(
            self._command,
            name="temporal server",
            log=self._directory / LOG,
            env=environment(),
            cwd=self._directory,
            keeps_open=self._keeps_open,
            umask=permissions.OTHER_USERS,
        )

    async def ready(self) -> None:
        """Wait until the server answers, then open its UI. Raises ProcessFailed."""
        await self._process.until(lambda: answers(self.address), within_s=START_S)
        try:
            await self._proxy.open()
        except OSError as error:
            raise ProcessFailed(f"the UI's port {self.ui_port}: {error.strerror}") from None

    async def ensure_alive(self) -> None:
        """Start the server again at the same place if it died; with a file it has all that it had stored."""
        if not self._process.is_alive:
            self._process = self._launch()
            await self.ready()

    def end(self) -> None:
        """End the server after a moment to tidy up; all that it answered is in its file by then."""
        self._proxy.close()
        self._process.end(within_s=1.0)


async def start(
    directory: Path,
    *,
    port: int | None = None,
    ui_port: int | None = None,
    lock: int | None = None,
) -> DevServer:
    """Start a server and wait until it answers. A port that is not given is a free one."""
    while True:
        chosen, ui_chosen = port or free_port(), ui_port or free_port()
        server = DevServer(directory, port=chosen, ui_port=ui_chosen, lock=lock)
        try:
            await server.ready()
        except ProcessFailed as error:
            server.end()
            # Another process may have taken the port meanwhile; if that port is required, this is an error.
            if port is not None or "address already in use" not in str(error):
                raise
        else:
            return server


async def answers(address: str) -> bool:
    """Whether a server answers there and has every search attribute, the last thing that it sets up."""
    try:
        return not await missing_attributes(await Client.connect(address))
    except (RPCError, RuntimeError):  # RuntimeError: nothing listens yet
        return False


async def missing_attributes(client: Client) -> list[str]:
    """Search attributes that its namespace does not have: an upsert of one would wedge every job."""
    request = ListSearchAttributesRequest(namespace=client.namespace)
    attributes = await client.operator_service.list_search_attributes(request)
    return sorted(search_attributes().keys() - attributes.custom_attributes.keys())


def temporal_binary() -> str:
    """The `temporal` executable: of our own environment first, else of the machine."""
    beside_python = Path(sys.executable).with_name("temporal")
    path = str(beside_python) if beside_python.exists() else shutil.which("temporal")
    if path is None:
        problem = (
            "no `temporal` executable beside this Python or on PATH; `make setup` installs one"
        )
        raise ProcessFailed(problem)
    return path


def search_attributes() -> dict[str, str]:
    """Name and type of every search attribute that a namespace of ours must have."""
    return {
        **dict.fromkeys(names.KEYWORDS, "Keyword"),
        **dict.fromkeys(names.INTS, "Int"),
        **dict.fromkeys(names.KEYWORD_LISTS, "KeywordList"),
    }


def _command(*, port: int, ui: tuple[str, int], database: Path | None) -> list[str]:
    command = [temporal_binary(), "server", "start-dev", "--log-level", "error"]
    command += ["--ip", "127.0.0.1", "--port", str(port)]
    command += ["--ui-ip", ui[0], "--ui-port", str(ui[1])]
    if database is not None:
        command += ["--db-filename", str(database)]
        for name, value in PRAGMAS.items():
            command += ["--sqlite-pragma", f"{name}={value}"]
    for name, kind in search_attributes().items():
        command += ["--search-attribute", f"{name}={kind}"]
    for key, value in {**TUNED, **CLOSED}.items():
        command += ["--dynamic-config-value", f"{key}={value}"]
    return command
