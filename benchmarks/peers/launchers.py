"""How each launcher is told to run the script, with the settings it is best at here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from everstep.backends.agents.client.link import NoAnswer
from everstep.backends.local.reconciling.agents import AgentFolder
from everstep.processes import free_port
from everstep.protocol import wire

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv-peers" / "bin"
PYTHON = BIN / "python3"
SCRIPT = ROOT / "benchmarks" / "peers" / "train.py"
EVERSTEP = [sys.executable, "-c", "from everstep.cli.script import run; run()"]
LIMIT_S = 5
RESTARTS = 1000
ENDED_S = 40.0
READY_S = 120.0

PLENTY = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    name: str
    run: Callable[[Path, signal.Signals], AbstractContextManager[None]]
    most: Mapping[signal.Signals, int]  # faults to measure at most
    ready: Callable[[Path], None] = lambda _folder: None


def settings(folder: Path) -> dict[str, str]:
    """What the script is told under every launcher."""
    return {
        "OMP_NUM_THREADS": "1",
        "EVENTS": str(folder / "events"),
        "CHECKPOINTS": str(folder / "ckpt"),
    }


@contextmanager
def process(folder: Path, command: list[str], env: Mapping[str, str]) -> Iterator[None]:
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen(
            command,
            env={**os.environ, **settings(folder), **env},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        running.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(ENDED_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def torchrun(folder: Path, number: signal.Signals) -> AbstractContextManager[None]:
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nnodes=1"]
    command += ["--nproc-per-node=2", f"--max-restarts={RESTARTS}", SCRIPT]
    # Else it may not find its way back after a restart.
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if number == signal.SIGSTOP:  # it has no eye on progress: the group's own time-out must do
        env["GROUP_TIMEOUT_S"] = str(LIMIT_S)
    return process(folder, [str(word) for word in command], env)


def ft_launcher(folder: Path, _number: signal.Signals) -> AbstractContextManager[None]:
    command = [BIN / "ft_launcher", "--nnodes=1", "--nproc-per-node=2"]
    command += [f"--max-restarts={RESTARTS}", "--rdzv-backend=c10d"]
    command += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--ft-workload-check-interval=1"]
    command += [f"--ft-rank-heartbeat-timeout={LIMIT_S}", "--ft-initial-rank-heartbeat-timeout=60"]
    path = f"{BIN}:{os.environ['PATH']}"
    return process(
        folder, [str(word) for word in [*command, SCRIPT]], {"HEARTBEATS": "1", "PATH": path}
    )


# -- Ours -------------------------------------------------------------------------------------------


@contextmanager
def everstep(folder: Path, _number: signal.Signals, *, prewarm: list[str]) -> Iterator[None]:
    port = free_port()
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("EVERSTEP_", "TEMPORAL_"))},
        "EVERSTEP_HOME": str(folder / "home"),
        "EVERSTEP_PID_NAMESPACE": "false",  # ranks are killed by the numbers that they write down
        "EVERSTEP_ALLOW_OTHER_USERS": "true",
        "TEMPORAL_ADDRESS": f"127.0.0.1:{port}",
        "TEMPORAL_CONFIG_FILE": os.devnull,
    }
    document = folder / "job.json"
    document.write_text(json.dumps(job(folder, prewarm)))
    serving = ["dev", "--port", str(port), "--ui-port", str(free_port())]
    with subprocess.Popen([*EVERSTEP, *serving], env=env, stdout=subprocess.PIPE, text=True) as dev:
        try:
            assert dev.stdout is not None
            while "Ctrl-C ends" not in dev.stdout.readline():
                assert dev.poll() is None
            told(env, "submit", str(document))
            try:
                yield
            finally:
                stopped(env)
        finally:
            dev.terminate()


def stopped(env: Mapping[str, str]) -> None:
    """Nothing of the job runs any more: it would outlive its server."""
    told(env, "stop", "peers", "--grace-s", "0")
    deadline = time.monotonic() + ENDED_S
    while '"stopped"' not in told(env, "status", "peers", "--json"):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def told(env: Mapping[str, str], *words: str) -> str:
    return subprocess.run(
        [*EVERSTEP, *words], env=env, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def job(folder: Path, prewarm: list[str]) -> dict[str, object]:
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "peers"},
        "spec": {
            "command": [str(PYTHON), str(SCRIPT)],
            "workdir": str(folder),
            "nodes": 1,
            "processes_per_node": 2,
            "model_dir": str(folder / "out"),
            "checkpoints": {"path": str(folder / "ckpt")},
            "prewarm": prewarm,
            "env": settings(folder),
            "limits": {"hang_s": LIMIT_S},
            "recovery": {"no_progress_restarts": None},
        },
    }


def helper_ready(folder: Path) -> None:
    """The first start is plain; what is measured is every other one."""
    deadline = time.monotonic() + READY_S
    while True:
        for path in (folder / "home" / "agents").glob("*"):
            with contextlib.suppress(NoAnswer):
                helper = asyncio.run(AgentFolder(path=path).request("GET", wire.STATE))["helper"]
                if helper and helper["ready"]:
                    return
        assert time.monotonic() < deadline, "the prewarm helper is not ready"
        time.sleep(0.1)


LAUNCHERS = (
    Launcher(
        name="everstep, prewarmed",
        run=partial(everstep, prewarm=["torch"]),
        most={signal.SIGKILL: PLENTY, signal.SIGSTOP: PLENTY},
        ready=helper_ready,
    ),
    Launcher(
        name="everstep, not prewarmed",
        run=partial(everstep, prewarm=[]),
        most={signal.SIGKILL: PLENTY, signal.SIGSTOP: PLENTY},
    ),
    Launcher(
        name="torchrun",
        run=torchrun,
        most={signal.SIGKILL: PLENTY, signal.SIGSTOP: 2},  # its grace for a stopped rank is 30 s
    ),
    Launcher(
        name="NVRx ft_launcher",
        run=ft_launcher,
        most={signal.SIGKILL: PLENTY, signal.SIGSTOP: PLENTY},
    ),
)
