"""A real process that trains as the contract wants it: steps, checkpoints, ends on demand.

STEPS, STEP_S, CHECKPOINT_EVERY and CRASH_AT_STEP (`rank:step:code`) say how; CONTROL is a folder in
which a file named `<job>-<rank>` holds the exit code to end with. SIGTERM requests a checkpoint and an end;
with IGNORES_SIGTERM it has no effect. SIGUSR1 requests a checkpoint, unless SAVES_ON_SIGNAL is 0.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

RANK = int(os.environ["RANK"])
CHECKPOINTS = Path(os.environ["CHECKPOINTS"])
CONTROL = Path(os.environ["CONTROL"]) / f"{os.environ['EVERSTEP_JOB']}-{RANK}"


class Training:
    """What rank 0 would save."""

    def __init__(self) -> None:
        self.step = int(os.environ.get("EVERSTEP_RESUME_STEP", "0"))
        self.every = int(os.environ.get("CHECKPOINT_EVERY", "10"))
        self.crash = [int(part) for part in os.environ.get("CRASH_AT_STEP", "-1:0:0").split(":")]

    def save(self) -> None:
        if RANK == 0:
            CHECKPOINTS.mkdir(parents=True, exist_ok=True)
            fresh = CHECKPOINTS / f"step-{self.step}.json.tmp"
            fresh.write_text(json.dumps({"step": self.step}))
            fresh.replace(CHECKPOINTS / f"step-{self.step}.json")

    def note_order_to_end(self, _number: int, _frame: FrameType | None) -> None:
        self.save()
        sys.exit(0)

    def run(self) -> None:
        if os.environ.get("SAVES_ON_SIGNAL", "1") == "1":
            signal.signal(signal.SIGUSR1, lambda *_: self.save())
        is_deaf = "IGNORES_SIGTERM" in os.environ
        signal.signal(signal.SIGTERM, signal.SIG_IGN if is_deaf else self.note_order_to_end)
        while self.step < int(os.environ.get("STEPS", "100")):
            time.sleep(float(os.environ.get("STEP_S", "0.02")))
            if CONTROL.exists():
                code = int(CONTROL.read_text())
                CONTROL.unlink()
                sys.exit(code)
            self.step += 1
            sys.stdout.write(f"step {self.step}\n")
            sys.stdout.flush()
            if self.step % self.every == 0:
                self.save()
            if self.crash[:2] == [RANK, self.step]:
                sys.exit(self.crash[2])


if __name__ == "__main__":
    Training().run()
