"""What it costs to look at a folder of 200 checkpoints with 1,000 files each, to choose one.

The agent's share is the look itself and its answer as JSON, the worker's what it makes of the answer. The
files are hard links, so that their number takes little room; each is whole and is read as such.
"""

from __future__ import annotations

import json
import shutil
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import benchmarks.support  # noqa: F401  # SIGTERM ends it as Ctrl-C does
from everstep.agent.storage import checkpoints
from everstep.agent.storage.checkpoints import CheckpointWatch
from everstep.backends.agents.client import agent_views

CHECKPOINTS, FILES = 200, 1_000
SAMPLES = 21
AGENT_MS, WORKER_MS = 200.0, 50.0


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-"))
    try:
        fill(folder / "parts", folder / "saves")
        measure(folder / "saves")
    finally:
        shutil.rmtree(folder)


def fill(parts: Path, saves: Path) -> None:
    """As a trainer saves: tensors in many files, and its state."""
    parts.mkdir()
    header = json.dumps({"w": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
    names = [f"model-{n:05d}.safetensors" for n in range(FILES - 1)]
    for name in names:
        (parts / name).write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    for step in range(1, CHECKPOINTS + 1):
        own = saves / f"checkpoint-{step}"
        own.mkdir(parents=True)
        for name in names:
            (own / name).hardlink_to(parts / name)
        (own / "trainer_state.json").write_text(json.dumps({"global_step": step}))


def measure(saves: Path) -> None:
    known = checkpoints.Verdicts()
    answers: list[str] = []

    def look() -> None:
        found = checkpoints.scan(str(saves), verdicts=known)
        answers.append(json.dumps({"checkpoints": found}))

    first = ms(look)
    agent = [ms(look) for _ in range(SAMPLES)]
    worker = [ms(lambda: understand(answers[-1])) for _ in range(SAMPLES)]
    watch = CheckpointWatch(str(saves), "auto", lambda _: False)
    watch.newest(0.0)
    newest = [ms(lambda: watch.newest(1.0)) for _ in range(SAMPLES)]
    assert understand(answers[-1]) == CHECKPOINTS
    print(f"{CHECKPOINTS} checkpoints, {FILES} files each; ms      median       min       max")
    print(f"  {'agent, the first look':<38}{first:10.1f}")
    row("agent, after it (goal 200)", agent)
    row("agent, each second in training", newest)
    row("worker (goal 50)", worker)
    if statistics.median(agent) > AGENT_MS or statistics.median(worker) > WORKER_MS:
        sys.exit("slower than the goal")


def understand(answer: str) -> int | None:
    found = [agent_views.checkpoint(saved) for saved in json.loads(answer)["checkpoints"]]
    return found[0].step


def ms(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def row(what: str, spent: list[float]) -> None:
    print(
        f"  {what:<38}{statistics.median(spent):10.1f}{min(spent):10.1f}{max(spent):10.1f}",
    )


if __name__ == "__main__":
    main()
