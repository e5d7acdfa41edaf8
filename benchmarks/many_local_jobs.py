"""Many healthy jobs on one worker of this machine: what the worker costs, and what the agents cost.

Each job is one pod with one rank that prints a step a second. Measured over a while in which nothing goes
wrong: processor time and memory of the worker, of the server, and of all agents together.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from temporalio.client import Client

import benchmarks.support  # noqa: F401  # SIGTERM ends this as Ctrl-C does
from everstep.backends.local.clearing import end_all
from everstep.core import names
from everstep.processes import free_port

ROOT = Path(__file__).resolve().parents[1]
EVERSTEP = [sys.executable, "-c", "from everstep.cli.script import run; run()"]
JOBS = 200
WATCHED_S = 30.0
START_S = 600.0
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
GOAL = 0.25
SCRIPT = [
    *(sys.executable, "-I", "-S", "-u", "-c"),
    "import itertools, time\nfor step in itertools.count(1): print('step', step); time.sleep(1)",
]


def document(name: str) -> dict[str, object]:
    return {
        "apiVersion": "everstep/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {"command": SCRIPT, "progress": {"log_pattern": r"^step (?P<step>\d+)$"}},
    }


def everstep(env: dict[str, str], *words: str) -> str:
    return subprocess.run(
        [*EVERSTEP, *words], env=env, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


async def submit(address: str) -> None:
    client = await Client.connect(address)
    for name in (f"many-{number}" for number in range(JOBS)):
        await client.start_workflow(
            names.TRAINING_JOB, document(name), id=name, task_queue=names.TASK_QUEUE
        )


def until_all_run(env: dict[str, str]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        listed = json.loads(everstep(env, "list", "--json"))
        running = sum(job["state"] == "running" for job in listed)
        if running == JOBS:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"only {running} of {JOBS} jobs run after {START_S:g} s")
        time.sleep(1.0)


def pids(home: Path, *words: str) -> list[int]:
    """Processes with this directory in their environment or command line, and these words in the latter."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                told = (entry / "cmdline").read_bytes()
                around = told + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(home).encode() in around and all(word.encode() in told for word in words):
                found.append(int(entry.name))
    return found


def used(of: Iterable[int]) -> tuple[float, float]:
    """Processor seconds and MB of memory of these processes."""
    seconds = megabytes = 0.0
    for pid in of:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(after_name[11]) + int(after_name[12])) / TICKS
        megabytes += int(after_name[21]) * PAGE / 1e6
    return seconds, megabytes


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="everstep-bench-"))
    home, port = folder / "home", free_port()
    env = {
        **os.environ,
        "EVERSTEP_HOME": str(home),
        "EVERSTEP_ALLOW_OTHER_USERS": "true",
        "EVERSTEP_ORPHAN_S": "60",
        "TEMPORAL_ADDRESS": f"127.0.0.1:{port}",
    }
    serving = ["dev", "--nodes", "1", "--port", str(port), "--ui-port", str(free_port())]
    with subprocess.Popen([*EVERSTEP, *serving], env=env, stdout=subprocess.PIPE, text=True) as dev:
        assert dev.stdout is not None
        while "Ctrl-C" not in dev.stdout.readline():
            pass
        try:
            asyncio.run(submit(env["TEMPORAL_ADDRESS"]))
            until_all_run(env)
            parts = {
                "the worker": pids(home, "-m", "worker"),
                "the server": pids(home, "start-dev"),
                "all agents and wardens": pids(home, "agent.pyz"),
            }
            before = {name: used(of) for name, of in parts.items()}
            time.sleep(WATCHED_S)
            print(f"{JOBS} healthy jobs, {WATCHED_S:g} s       of a core       MB  processes")
            for name, of in parts.items():
                seconds, megabytes = used(of)
                share = (seconds - before[name][0]) / WATCHED_S
                print(f"  {name:<24} {share:12.1%} {megabytes:8.0f} {len(of):10}")
            print(f"  goal for the worker: at most {GOAL:.0%} of a core")
        finally:
            dev.terminate()
            dev.wait()
            end_all(home)


if __name__ == "__main__":
    main()
