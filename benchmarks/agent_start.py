"""What it costs to start the processes of a pod: processor time of an agent, of its warden, of a rank.

An agent counts from its start until it answers its first request, a warden until it has found that nothing
holds its input open, a rank from its start until it runs its command, which does nothing. A bare interpreter
is what none of them can do without.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import benchmarks.support  # noqa: F401  # SIGTERM ends it as Ctrl-C does
from everstep.agent import build
from everstep.agent.processes import rank_exec
from tests.agent.pod import Pod

RUNS = 15
AGENT_MS, WARDEN_MS = 65.0, 30.0
BARE = (sys.executable, "-I", "-S")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="agent-start-") as folder:
        home = Path(folder)
        pyz = build.build(home / "agent.pyz")
        starts: dict[str, Callable[[], object]] = {
            "a bare interpreter": lambda: ended(*BARE, "-c", "pass"),
            f"an agent (goal {AGENT_MS:g})": lambda: agent(pyz, home),
            f"a warden (goal {WARDEN_MS:g})": lambda: ended(*BARE, str(pyz), *warden_of(home)),
            "a rank that does nothing": rank,
        }
        costs: dict[str, list[float]] = {name: [] for name in starts}
        for _ in range(RUNS):  # in turns: the speed of a machine changes
            for name, start in starts.items():
                costs[name].append(processor_ms(start))
    print(f"processor time of a start, ms, {RUNS} runs, load {os.getloadavg()[0]:.1f}")
    print(f"  {'':<24}    median       min       max")
    for name, values in costs.items():
        print(
            f"  {name:<24}{statistics.median(values):10.1f}{min(values):10.1f}{max(values):10.1f}"
        )
    bare, *rest = (min(values) for values in costs.values())
    print(f"  beside a bare interpreter: {', '.join(f'{one / bare:.1f}' for one in rest)} times")
    return 0


def processor_ms(start: Callable[[], object]) -> float:
    """Processor time of the processes that `start` starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def ended(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def agent(pyz: Path, home: Path) -> None:
    """Start an agent and kill it once it answers. Its warden is no child of this process."""
    uid = f"start-{uuid.uuid4().hex[:8]}"
    pod = Pod(pyz, home / uid, uid)
    try:
        pod.start()
    finally:
        pod.end()


def warden_of(home: Path) -> tuple[str, ...]:
    return ("warden", str(os.getpid()), "1", "start", str(home))


def rank() -> None:
    pid, report = rank_exec.spawn(["/bin/true"], dict(os.environ), "/", [])
    _, status = os.waitpid(pid, 0)
    assert status == 0, os.read(report, 4096)
    os.close(report)


if __name__ == "__main__":
    sys.exit(main())
