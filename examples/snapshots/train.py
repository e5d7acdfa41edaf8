"""A loop that loses no step: DDP over gloo on the CPU, its state in memory after each step.

Whatever ends a rank, its successor goes on after the step that it had completed, with the same bits: weights,
moments of the optimizer and the state of the random numbers are in the snapshot. A checkpoint is for the day
on which all pods are lost; where they are given up in order, the last step becomes one.

  OUT         folder of the checkpoints and of final.json (out)
  STEPS       number of the last step (200)
  SAVE_EVERY  steps from one checkpoint to the next (100)
  STEP_S      seconds that a step takes at least (0)
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from everstep.train import run

OUT = Path(os.environ.get("OUT", "out"))
STEPS = int(os.environ.get("STEPS", "200"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "100"))
STEP_S = float(os.environ.get("STEP_S", "0"))


class Training:
    """Everything that a step changes."""

    def __init__(self) -> None:
        torch.manual_seed(7 + dist.get_rank())
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.Dropout(0.1), torch.nn.Linear(256, 8)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.step = 0

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }

    def load(self, step: int, state: dict[str, Any]) -> None:
        self.step = step
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])

    def resume(self) -> None:
        """From memory, from the checkpoint that the start names, or from nothing."""
        if (restored := run.restore()) is not None:
            self.load(restored.step, restored.state)
        elif path := os.environ.get("EVERSTEP_RESUME_PATH"):
            saved = torch.load(Path(path) / f"rank-{dist.get_rank()}.pt")
            self.load(saved["step"], saved)


def save(step: int, state: dict[str, Any]) -> None:
    """A checkpoint of this rank, renamed into place when it is whole.

    It is made from a snapshot too, in a process of its own, before the pods of the job are given up.
    """
    rank = os.environ["RANK"]
    part = OUT / f".rank-{rank}.part"  # PyTorch wants a name before the last dot
    torch.save({"step": step, **state}, part)
    folder = OUT / f"step-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    part.rename(folder / f"rank-{rank}.pt")


def digest(model: torch.nn.Module) -> str:
    """Of every bit of the weights."""
    weights = [value.contiguous().flatten() for value in model.state_dict().values()]
    return hashlib.sha256(repr([part.tolist() for part in weights]).encode()).hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    training = Training()
    ddp = DistributedDataParallel(training.model)  # gives all ranks the weights of rank 0
    training.resume()
    run.save_with(save)
    while training.step < STEPS:
        began, step = time.monotonic(), training.step + 1
        inputs = torch.randn(32, 64)
        training.optimizer.zero_grad()
        loss = ddp(inputs).square().mean()
        loss.backward()
        with run.updating(step):
            training.optimizer.step()
        training.step = step
        time.sleep(max(0.0, began + STEP_S - time.monotonic()))
        run.step(step)
        run.snapshot(step, training.state())
        if step % SAVE_EVERY == 0:
            with run.saving(step):
                save(step, training.state())
    if dist.get_rank() == 0:
        final = json.dumps({"step": training.step, "sha256": digest(training.model)})
        (OUT / "final.json").write_text(final + "\n")
    dist.barrier()  # rank 0 hosts the store: it must not leave first
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
