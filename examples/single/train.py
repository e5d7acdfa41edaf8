"""An ordinary script for one process: it knows nothing of Everstep, and needs nothing of it.

It fits a line, prints a step a line, saves now and then, and goes on from its newest checkpoint by
itself. Everstep runs it as it is and reads its steps from what it prints.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import time
from pathlib import Path

SLOPE, OFFSET = 3.0, -1.0  # the line to be found
RATE = 0.05

Line = tuple[float, float]


def improved(line: Line, step: int) -> Line:
    """One example, one step of gradient descent. The step alone makes the example."""
    x = 2.0 * random.Random(step).random() - 1.0
    slope, offset = line
    error = (slope * x + offset) - (SLOPE * x + OFFSET)
    return slope - RATE * error * x, offset - RATE * error


def save(folder: Path, step: int, line: Line) -> None:
    """Renamed when complete: a crash in the middle leaves no half a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".ckpt-{step}.tmp"
    with unfinished.open("w") as file:
        json.dump({"step": step, "slope": line[0], "offset": line[1]}, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(folder / f"ckpt-{step}.json")


def newest(folder: Path) -> tuple[int, Line]:
    """Where an earlier run of this script got to; the beginning if there was none."""
    names = (re.fullmatch(r"ckpt-(\d+)\.json", path.name) for path in folder.glob("ckpt-*.json"))
    steps = [int(name[1]) for name in names if name]
    if not steps:
        return 0, (0.0, 0.0)
    saved = json.loads((folder / f"ckpt-{max(steps)}.json").read_text())
    return saved["step"], (saved["slope"], saved["offset"])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fit a line.")
    parser.add_argument("--steps", type=int, default=100, help="number of the last step")
    parser.add_argument("--step-s", type=float, default=0.1, help="seconds that a step takes")
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the checkpoints")
    says = parser.parse_args()
    if says.steps < 0 or not 0 <= says.step_s <= 3600 or says.save_every < 1:
        parser.error("--steps and --step-s must not be below 0, nor --save-every below 1")
    return says


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C needs no traceback
    says = arguments()
    step, line = newest(says.out)
    while step < says.steps:
        time.sleep(says.step_s)
        step += 1
        line = improved(line, step)
        print(f"step {step}", flush=True)
        if step % says.save_every == 0 or step == says.steps:
            save(says.out, step, line)
    print(f"y = {line[0]:.4f} x + {line[1]:.4f}")


if __name__ == "__main__":
    main()
