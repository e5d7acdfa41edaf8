"""A training process with a script of its own: steps, checkpoints, crashes, and gates.

At a gate (`gates.json` in the CONTROL folder: steps by generation) every rank says that it is there and
waits until the gate is opened. So a fault meets training at the very step, however
slow the machine is. A file `exit-<rank>` has that rank end with its code, and exception, if it says one.
"""

from __future__ import annotations

import builtins
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
GENERATION = os.environ["EVERSTEP_GENERATION"]
CHECKPOINTS = Path(os.environ["CHECKPOINTS"])
CONTROL = Path(os.environ["CONTROL"])
STEPS = int(os.environ["STEPS"])
STEP_S = float(os.environ["STEP_S"])
POLL_S = 0.01
EVERY = int(os.environ["CHECKPOINT_EVERY"])


class Training:
    """One rank. Ranks meet only at gates."""

    def __init__(self) -> None:
        self.step = int(os.environ.get("EVERSTEP_RESUME_STEP", "0"))
        gates = json.loads((CONTROL / "gates.json").read_text())
        self.is_to_end = False  # by SIGTERM
        self.gates = frozenset(gates.get(GENERATION, ()))
        rank, step, code = os.environ.get("CRASH_AT_STEP", "-1:-1:0").split(":")
        self.crash = (int(rank), int(step)), f"{code}\n{os.environ.get('CRASH_EXCEPTION', '')}"

    def save(self) -> None:
        if RANK == 0:
            CHECKPOINTS.mkdir(parents=True, exist_ok=True)
            fresh = CHECKPOINTS / f"step-{self.step}.json.tmp"
            fresh.write_text(json.dumps({"step": self.step}))
            fresh.replace(CHECKPOINTS / f"step-{self.step}.json")

    def note_order_to_end(self, _number: int, _frame: FrameType | None) -> None:
        self.is_to_end = True

    def end_if_ordered(self) -> None:
        """After a checkpoint; and not before the step at which this start is to come to its end."""
        if self.is_to_end and self.step >= max(self.gates, default=0):
            self.save()
            sys.exit(0)

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self.note_order_to_end)
        self.wait_at_gate()
        while self.step < STEPS:
            time.sleep(STEP_S)
            self.step += 1
            sys.stdout.write(f"step {self.step}\n")
            sys.stdout.flush()
            if self.step % EVERY == 0:
                self.save()
            self.wait_at_gate()

    def wait_at_gate(self) -> None:
        where = f"g{GENERATION}-s{self.step}"
        where_crashed, how = self.crash
        crashes = where_crashed == (RANK, self.step + 1)
        if self.step in self.gates:
            (CONTROL / f"at-{where}-r{RANK}").touch()
            while not (CONTROL / f"open-{where}").exists():
                self.end_by_file()
                self.end_if_ordered()
                if crashes and len(list(CONTROL.glob(f"at-{where}-r*"))) == WORLD:
                    ended(how)
                time.sleep(POLL_S)
        self.end_by_file()
        self.end_if_ordered()

    def end_by_file(self) -> None:
        exit_file = CONTROL / f"exit-{RANK}"
        if exit_file.exists():
            how = exit_file.read_text()
            exit_file.unlink()
            ended(how)


def ended(how: str) -> None:
    """End as the text says: a code, and on the second line the exception that leads to it."""
    code, _, exception = how.partition("\n")
    name, _, message = exception.partition(": ")
    if name:
        raise getattr(builtins, name)(message)
    sys.exit(int(code))


if __name__ == "__main__":
    Training().run()
