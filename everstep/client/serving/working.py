"""A worker as a child process: how much of this machine it serves, its settings, how it is kept alive."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from temporalio.service import RPCError

from everstep import processes
from everstep.agent.observing.hardware import Devices
from everstep.backends.agents.commands.environment import ALL
from everstep.client import connection, machine
from everstep.client.exit_codes import Exit, Failed
from everstep.client.home import home
from everstep.client.serving import holding, metrics_page
from everstep.core.spec import JobSpec
from everstep.processes import Process, ProcessFailed, environment

LOG = logging.getLogger(__name__)
_numbers = itertools.count(1)
"""Of the workers of this process that have a log of their own."""

WORKER_S = 30.0
READY = "everstep worker ready"
NO_METRICS = "the worker of this command serves no metrics: {address} is taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """How much of this machine a worker serves, and the ports of a server that is started for it."""

    nodes: int
    devices: Devices
    port: int | None = None
    ui_port: int | None = None
    allows_others: bool = False  # serve although other users of the machine could start jobs


async def machine_for(spec: JobSpec, *, nodes: int | None, devices: Devices) -> Machine:
    """A machine of the size that the job needs. Only `nodes` lets it exceed what `dev` serves."""
    most = max(phase.nodes for phase in spec.phases)
    served = await _nodes_of_dev() if spec.cluster == machine.USUAL else None
    if served is None:
        return Machine(nodes=nodes or most, devices=devices)
    if nodes is not None:
        await machine.own_tools().ensure_nodes(nodes, devices=devices.count)
        return Machine(nodes=nodes, devices=devices)
    least = max(phase.nodes_min for phase in spec.phases)
    if least > served:
        problem = (
            f"{spec.name} needs {least} nodes, and `everstep dev` serves this machine with {served}"
        )
        raise Failed(Exit.USAGE, f"{problem}; --nodes {most} adds what is missing, for good")
    return Machine(nodes=min(most, served), devices=devices)


async def _nodes_of_dev() -> int | None:
    """The number of nodes of this machine while `dev` runs the configured server; else None."""
    place = holding.current(home())
    if place is None or place.nodes is None or connection.address() != place.address:
        return None
    with machine.database_can_be_read():
        return max(place.nodes, len(await machine.own_tools().nodes()))


class Worker:
    """A worker process for one server; `ensure_alive` starts it, and starts it again after it died."""

    def __init__(
        self,
        served: Machine,
        server: Callable[[], Mapping[str, str]],
        *,
        is_alone: bool,
        is_of_run: bool,
    ) -> None:
        """`server` returns the `TEMPORAL_*` variables. `is_alone`: it is the only worker of this folder.

        `is_of_run`: a job waits for it, so that it starts without metrics where their address is taken.
        """
        self._machine = served
        self._server = server
        self._is_guest = not is_alone
        self._is_of_run = is_of_run
        self._log = home() / (
            "worker.log" if is_alone else f"worker-{os.getpid()}-{next(_numbers)}.log"
        )
        self._process: Process | None = None
        self._is_ready = False
        self._was_ready = False
        self._has_note = False

    @property
    def is_begun(self) -> bool:
        """Whether it is starting, or was ready at some time."""
        return self._was_ready or (self._process is not None and self._process.is_alive)

    async def ensure_alive(self) -> None:
        """Start the worker unless it is alive, and wait until it is ready."""
        if self._process is None or not self._process.is_alive:
            self._is_ready = False
            self._process = self._launch()
        if not self._is_ready:  # one that takes longer is waited for again: no second one beside it
            try:
                await self._process.wait_for_line(READY, within_s=WORKER_S)
            except ProcessFailed as error:
                if error.code != Exit.USAGE or self._has_note or not self._no_metrics():
                    raise
                # Another worker took the address between the look at it and this worker's start.
                self._process = self._launch()
                await self._process.wait_for_line(READY, within_s=WORKER_S)
            self._is_ready = self._was_ready = True

    def _launch(self) -> Process:
        settings = {**_settings(self._machine), **self._server(), **self._no_metrics()}
        return Process(
            # Relative paths of documents begin here; a worker.py that lies here is not ours.
            [sys.executable, "-P", "-m", "worker"],
            name="worker",
            log=self._log,
            env=environment(**settings),
        )

    def _no_metrics(self) -> dict[str, str]:
        """Variables that turn metrics off where another process listens at their address."""
        address = os.environ.get(metrics_page.VARIABLE, "")
        if not self._is_of_run or not metrics_page.is_taken(address):
            return {}
        if not self._has_note:  # once, however often the worker is started again
            self._has_note = True
            LOG.warning(NO_METRICS.format(address=address))
        return {metrics_page.VARIABLE: ""}

    @contextlib.contextmanager
    def log_kept_if_failed(self) -> Iterator[None]:
        """Remove the log after the block if only this run used it. After a failure it has the reason."""
        try:
            yield
        except Exception:
            raise
        except BaseException:  # an interrupt
            self._remove_log()
            raise
        self._remove_log()

    def _remove_log(self) -> None:
        if self._is_guest:
            self._log.unlink(missing_ok=True)


@asynccontextmanager
async def kept_alive(
    ensure: Callable[[], Awaitable[None]], *, every_s: float
) -> AsyncIterator[None]:
    """Call `ensure` every `every_s` seconds inside the block. A failed call is repeated like any other."""

    async def keep() -> None:
        while True:
            await asyncio.sleep(every_s)
            with contextlib.suppress(ProcessFailed, OSError, RPCError):
                await ensure()

    keeping = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeping.cancel()


@contextlib.contextmanager
def children_ended() -> Iterator[None]:
    """End child processes with the block. Raises `Failed` with a sentence where one did not start."""
    try:
        with processes.ended_with_block():
            yield
    except ProcessFailed as error:
        # A worker whose settings are wrong ends as a command does whose arguments are.
        is_usage = (error.name, error.code) == ("worker", Exit.USAGE)
        raise Failed(Exit.USAGE if is_usage else Exit.UNREACHABLE, error.short) from None


def _settings(served: Machine) -> dict[str, str]:
    """The worker's environment: that of this process, except what is set here."""
    variables = {name: text for name, text in os.environ.items() if name.startswith("EVERSTEP_")}
    return {
        "EVERSTEP_PASS_ENV": ALL,  # who runs a script here expects their shell
        **variables,
        "EVERSTEP_BACKEND": "local",
        "EVERSTEP_DEPLOYMENT": "",  # its server has no current version, and gets no other worker
        "EVERSTEP_HOME": str(home()),
        "EVERSTEP_NODES": str(served.nodes),
        "EVERSTEP_DEVICES": str(served.devices.count),
        "EVERSTEP_ACCELERATOR": served.devices.kind,
    }
