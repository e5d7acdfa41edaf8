"""A training script that writes down every write: which generation, when, which step. Standard library.

Every rank saves a checkpoint at each step and notes it before and after, in one file of all ranks. It
needs no other rank, so nothing but us can end one that should not run any more. It is done when a later
generation than the first has made STEPS steps of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

LINE_BYTES = 128
"""Spaces fill each line to this length, so that none crosses a page of the file.

The kernel shows a write page by page: a reader, or a SIGKILL, would cut such a line in two.
"""


def note(**text: object) -> None:
    """Write a line to the common file, whole, also with other writers at the same time."""
    text = {"rank": RANK, "generation": GENERATION, "at": time.time(), **text}
    line = json.dumps(text).ljust(LINE_BYTES - 1) + "\n"
    handle = os.open(FOLDER / "writes.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, line.encode())
    os.close(handle)


def save(step: int) -> None:
    """As rank 0 of most scripts does it: written beside, then renamed."""
    unfinished = FOLDER / f".step-{step}.{os.getpid()}.tmp"
    unfinished.write_text(json.dumps({"step": step, "generation": GENERATION}))
    unfinished.replace(FOLDER / f"step-{step}.json")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    begun = int(os.environ.get("EVERSTEP_RESUME_STEP", "0"))
    note(what="start", step=begun)
    step = begun
    while GENERATION == 1 or step < begun + int(os.environ["STEPS"]):
        step += 1
        if RANK == 0:
            save(step)
        note(what="save", step=step)
        sys.stdout.write(f"step {step} loss 0\n")
        sys.stdout.flush()
        time.sleep(0.05)


RANK, GENERATION = int(os.environ["RANK"]), int(os.environ["EVERSTEP_GENERATION"])
FOLDER = Path(os.environ["CHECKPOINTS"])

if __name__ == "__main__":
    main()
