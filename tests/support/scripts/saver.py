"""A training script that does nothing but save, and is killed in the middle of it. Standard library.

FORMAT says how it saves (`WAYS`). KILL_AT is a number of pieces: once so many were written, it kills
itself with SIGKILL, with everything open. After its first save it is still for TRAIN_S. What a file of
a step must hold is `content`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PIECE = 4096
PIECES = 16
PARTS = 4


def content(step: int) -> bytes:
    """All that has to be there of this step, and nothing that another step would have."""
    return (hashlib.sha256(str(step).encode()).digest() * PIECE)[: PIECE * PIECES]


def loads(path: Path, step: int) -> bool:
    """Whether this checkpoint is the one of the step, to the last byte."""
    if path.is_dir():
        parts = [path / f"part-{number}.dat" for number in range(PARTS)]
        return b"".join(part.read_bytes() for part in parts) == content(step)
    if path.suffix == ".json":
        return bytes.fromhex(json.loads(path.read_text())["data"]) == content(step)
    return path.read_bytes() == content(step)


class Saver:
    """Writes piece by piece, and dies when it is time."""

    def __init__(self, folder: Path, kill_at: int) -> None:
        self.folder = folder
        self.left = kill_at

    def write(self, path: Path, data: bytes) -> None:
        with path.open("wb", buffering=0) as file:
            for start in range(0, len(data), PIECE):
                file.write(data[start : start + PIECE])
                self.left -= 1
                if self.left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

    def renamed(self, step: int) -> None:
        unfinished = self.folder / f"step-{step}.dat.tmp"
        self.write(unfinished, content(step))
        unfinished.replace(self.folder / f"step-{step}.dat")

    def in_place(self, step: int) -> None:
        self.write(self.folder / f"step-{step}.dat", content(step))

    def in_place_json(self, step: int) -> None:
        text = json.dumps({"step": step, "data": content(step).hex()})
        self.write(self.folder / f"step-{step}.json", text.encode())

    def directory(self, step: int) -> None:
        folder, data = self.folder / f"step-{step}", content(step)
        folder.mkdir(exist_ok=True)
        size = len(data) // PARTS
        for number in range(PARTS):
            part = data[number * size : (number + 1) * size]
            self.write(folder / f"part-{number}.dat", part)


WAYS: Mapping[str, Callable[[Saver, int], None]] = {
    "renamed": Saver.renamed,
    "in place": Saver.in_place,
    "in place, JSON": Saver.in_place_json,
    "directory": Saver.directory,
}


def main() -> None:
    saver = Saver(Path(os.environ["CHECKPOINTS"]), int(os.environ["KILL_AT"]))
    saver.folder.mkdir(parents=True, exist_ok=True)
    save = WAYS[os.environ["FORMAT"]]
    step = int(os.environ.get("EVERSTEP_RESUME_STEP", "0"))
    is_first = True
    while True:
        step += 1
        save(saver, step)
        sys.stdout.write(f"step {step}\n")
        sys.stdout.flush()
        if is_first:
            time.sleep(float(os.environ["TRAIN_S"]))
        is_first = False


if __name__ == "__main__":
    main()
