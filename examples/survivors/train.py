"""A loop whose ranks outlive a fault elsewhere: DDP over gloo on the CPU.

A rank that is killed gets a new process. The others keep theirs: they give up the step that they are in, give
the new one their state, and go on after the last completed step, with the same bits as without the fault.

  OUT         folder of the checkpoints and of final.json (out)
  STEPS       number of the last step (200)
  SAVE_EVERY  steps from one checkpoint to the next (100)
  STEP_S      seconds that a step takes at least (0)
  WIDTH       width of the layers (256)
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from everstep.train import run
from everstep.train.torch import Group

OUT = Path(os.environ.get("OUT", "out"))
STEPS = int(os.environ.get("STEPS", "200"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "100"))
STEP_S = float(os.environ.get("STEP_S", "0"))
WIDTH = int(os.environ.get("WIDTH", "256"))


def save(step: int, state: dict[str, Any]) -> None:
    """A checkpoint, renamed into place when it is whole."""
    part = OUT / "part.tmp"
    torch.save({name: one.state_dict() for name, one in state.items()}, part)
    part.rename(OUT / f"step_{step}.pt")


def loaded(state: dict[str, Any]) -> int:
    """The step of the checkpoint that the start names."""
    path, step = os.environ.get("EVERSTEP_RESUME_PATH"), os.environ.get("EVERSTEP_RESUME_STEP")
    if path is None or step is None:
        return 0
    saved = torch.load(path)
    for name, one in state.items():
        one.load_state_dict(saved[name])
    return int(step)


def digest(model: torch.nn.Module) -> str:
    """Of every bit of the weights."""
    weights = [value.contiguous().flatten() for value in model.state_dict().values()]
    return hashlib.sha256(repr([part.tolist() for part in weights]).encode()).hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, WIDTH), torch.nn.Dropout(0.1), torch.nn.Linear(WIDTH, 8)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    state = {"model": net, "optimizer": optimizer}
    done = loaded(state)
    group = Group("gloo", seed=7)
    # The same buckets in every step, so that the gradients are summed in the same order after a fault too.
    model = group.replicated(net, find_unused_parameters=True)
    for attempt in group.steps(STEPS, state=state, done=done):
        began = time.monotonic()
        with attempt as step:
            inputs = torch.randn(32, 64)
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            with group.updating(step):
                optimizer.step()
            if group.rank == 0 and step % SAVE_EVERY == 0:
                with run.saving(step):
                    save(step, state)
            time.sleep(max(0.0, began + STEP_S - time.monotonic()))
    if group.rank == 0:
        final = json.dumps({"step": group.completed, "sha256": digest(net)})
        (OUT / "final.json").write_text(final + "\n")
    group.close()


if __name__ == "__main__":
    main()
