"""The other launchers, as processes of this machine, each with the settings it is best at here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks.peers.events import Events
from benchmarks.peers.ranks import (
    SCRIPT,
    Running,
    both_step,
    descendants,
    end_ranks,
    environment,
    kill_rank,
    until,
    without_settings,
)
from everstep.processes import free_port
from tests.support.child import Child

TORCHRUN = ("-m", "torch.distributed.run")
RESTARTS = 1000
NOTICED_S = 0.2
"""The time from the end of a rank to the end of its launcher, which polls at least every 0.1 s."""
ENDED_S = 5.0

Command = Callable[[int], Sequence[str | Path]]
"""The command of the launcher with this number."""


class Launchers:
    """The processes of a launcher: one, or one for each node."""

    def __init__(
        self, folder: Path, events: Events, command: Command, env: Mapping[str, str]
    ) -> None:
        self.folder, self.events = folder, events
        self._command, self._env = command, env
        self._running: dict[int, Child] = {}

    def start(self, number: int, **more: str) -> None:
        command = [str(word) for word in self._command(number)]
        path = f"{Path(command[0]).parent}:{os.environ['PATH']}"  # NVRx looks there for parts of its own
        own = {"PATH": path, "TMPDIR": str(self.folder)}  # they leave logs behind
        env = {**without_settings(), **environment(self.folder, **self._env), **own, **more}
        log = self.folder / f"launcher-{number}-{time.monotonic_ns()}.log"
        self._running[number] = Child(command, name=command[0], log=log, env=env, cwd=self.folder)

    def kill(self, number: int) -> float:
        """SIGKILL to a launcher and all that it started, as where its container or its node ends; when."""
        launcher = self._running.pop(number)
        started = descendants(launcher.pid)
        at = time.time()
        for pid in (launcher.pid, *started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        launcher.kill()
        return at

    async def stop(self) -> None:
        """Nothing of them runs any more. In order first: else they leave processes behind."""
        for launcher in self._running.values():
            launcher.send(signal.SIGTERM)
        end_ranks(self.events)
        for number, launcher in list(self._running.items()):
            with contextlib.suppress(AssertionError):
                await launcher.ended(within_s=ENDED_S)
            self.kill(number)
        end_ranks(self.events)


@asynccontextmanager
async def _at_work(launchers: Launchers, *, store: int | None = None) -> AsyncIterator[None]:
    """Start them: two if there is the port of a store, which the first one has to hold."""
    try:
        launchers.start(0)
        if store is not None:
            await until(lambda: _listens(store), "the store")
            launchers.start(1)
        await both_step(launchers.events)
        yield
    finally:
        await launchers.stop()


async def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        return True
    return False


@asynccontextmanager
async def on_one_node(
    folder: Path, *, command: Command, env: Mapping[str, str]
) -> AsyncIterator[Running]:
    """One launcher starts both ranks. It is the controller."""
    events = Events(folder / "events")
    launchers = Launchers(folder, events, command, env)

    async def kill_with_controller() -> float:
        at = kill_rank(events)
        await asyncio.sleep(NOTICED_S)
        launchers.kill(0)
        launchers.start(0)
        return at

    async with _at_work(launchers):
        yield Running(folder=folder, events=events, kill_with_controller=kill_with_controller)


@asynccontextmanager
async def on_two_nodes(
    folder: Path, *, command: Callable[[int], Command], env: Mapping[str, str]
) -> AsyncIterator[Running]:
    """A launcher and a rank on each; the first one holds the store in which they meet."""
    events = Events(folder / "events")
    store = free_port()
    launchers = Launchers(folder, events, command(store), env)
    newest = 1

    async def lose_node() -> float:
        nonlocal newest
        at = launchers.kill(newest)
        newest += 1
        launchers.start(newest)
        return at

    async with _at_work(launchers, store=store):
        yield Running(folder=folder, events=events, lose_node=lose_node)


def torchrun(python: Path) -> Command:
    own = ["--standalone", "--nnodes=1", "--nproc-per-node=2", f"--max-restarts={RESTARTS}"]
    return lambda _: [python, *TORCHRUN, *own, SCRIPT]


def torchrun_on_two(python: Path) -> Callable[[int], Command]:
    return lambda store: lambda _: [python, *TORCHRUN, *_meeting(store), SCRIPT]


def _meeting(store: int) -> list[str]:
    """Two nodes, found dead after three seconds of silence."""
    return [
        "--nnodes=2",
        "--nproc-per-node=1",
        f"--max-restarts={RESTARTS}",
        "--rdzv-id=peers",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{store}",
        "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1",
    ]


def ft_launcher(bin_folder: Path, limit_s: float) -> Command:
    def command(_: int) -> Sequence[str | Path]:
        own = ["--nnodes=1", "--nproc-per-node=2", f"--max-restarts={RESTARTS}"]
        own += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
        return [bin_folder / "ft_launcher", *own, *_heartbeats(limit_s), SCRIPT]

    return command


def ft_launcher_on_two(bin_folder: Path, limit_s: float) -> Callable[[int], Command]:
    def command(store: int, number: int) -> Sequence[str | Path]:
        # The newest version refuses two launchers under one address.
        own = [*_meeting(store), f"--local-addr=127.0.0.{10 + number}"]
        return [bin_folder / "ft_launcher", *own, *_heartbeats(limit_s), SCRIPT]

    return lambda store: partial(command, store)


def _heartbeats(limit_s: float) -> list[str]:
    return [
        "--ft-workload-check-interval=1",
        f"--ft-rank-heartbeat-timeout={limit_s:g}",
        "--ft-initial-rank-heartbeat-timeout=60",
    ]


# -- torchft ----------------------------------------------------------------------------------------


@asynccontextmanager
async def torchft(folder: Path, *, python: Path, env: Mapping[str, str]) -> AsyncIterator[Running]:
    """Two replica groups of a rank, each under torchrun, and a lighthouse, which is the controller."""
    events = Events(folder / "events")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    one = ["--standalone", "--nnodes=1", "--nproc-per-node=1", f"--max-restarts={RESTARTS}"]
    launchers = Launchers(
        folder,
        events,
        lambda _: [python, *TORCHRUN, *one, SCRIPT],
        {**env, "HOW": "torchft", "TORCHFT_LIGHTHOUSE": address},
    )
    lighthouse = _lighthouse(folder, python, port)
    newest = 1

    async def kill_with_controller() -> float:
        nonlocal lighthouse
        at = kill_rank(events)
        await asyncio.sleep(NOTICED_S)
        lighthouse.kill()
        lighthouse = _lighthouse(folder, python, port)
        return at

    async def lose_node() -> float:
        nonlocal newest
        at = launchers.kill(newest)
        newest += 1
        launchers.start(newest, REPLICA_GROUP_ID="1")
        return at

    try:
        for number in (0, 1):
            launchers.start(number, REPLICA_GROUP_ID=str(number))
        await both_step(events)
        yield Running(
            folder=folder,
            events=events,
            kill_with_controller=kill_with_controller,
            lose_node=lose_node,
        )
    finally:
        await launchers.stop()
        lighthouse.kill()


def _lighthouse(folder: Path, python: Path, port: int) -> Child:
    """Silence of a second is death: no other sign of it is seen. Others are waited for as long."""
    command = [str(python.parent / "torchft_lighthouse"), "--bind", f"127.0.0.1:{port}"]
    command += ["--min_replicas", "1", "--join_timeout_ms", "1000"]
    command += ["--heartbeat_timeout_ms", "1000"]
    return Child(command, name="torchft_lighthouse", log=folder / "lighthouse.log")
