"""Data-parallel training with PyTorch, small enough to be read: DDP over gloo, on the CPU.

A small network learns a fixed one. The batch of a step is made from the step and the rank alone, the ranks
save model and optimizer together (torch.distributed.checkpoint), and a start with EVERSTEP_RESUME_PATH goes
on from there. So the weights of a step are the same to the last bit for any history of crashes, with the
same number of ranks.

What drives it, all from the environment:

  RANK WORLD_SIZE MASTER_ADDR MASTER_PORT   what init_process_group reads
  OUT                   folder of step-<N> and final.json (out)
  STEPS                 number of the last step (100)
  STEP_S                seconds that a step takes at least (0)
  SAVE_EVERY            steps from one checkpoint to the next (10)
  EVERSTEP_RESUME_PATH  the checkpoint to go on from; without it a run starts anew
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
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

INPUTS, HIDDEN, OUTPUTS, BATCH = 64, 256, 8, 32
SEED = 7


def setting(name: str, default: str) -> float:
    return float(os.environ.get(name, default))


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, OUTPUTS)
    )


def batch(teacher: torch.nn.Module, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and answers of this rank; the same whenever it is asked."""
    chance = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    inputs = torch.randn(BATCH, INPUTS, generator=chance)
    with torch.no_grad():
        return inputs, teacher(inputs)


def content(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    """All that a run needs to go on."""
    weights, moments = get_state_dict(model, optimizer)
    return {"step": step, "model": weights, "optimizer": moments}


def resumed(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step that was made last."""
    path = os.environ.get("EVERSTEP_RESUME_PATH")
    if not path:
        return 0
    saved = content(model, optimizer, 0)
    dcp.load(saved, checkpoint_id=path)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=saved["model"],
        optim_state_dict=saved["optimizer"],
    )
    return int(saved["step"])


def digest(model: torch.nn.Module) -> str:
    """Of every bit of the weights."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(bytes(value.contiguous().view(torch.uint8).flatten().tolist()))
    return found.hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    out = Path(os.environ.get("OUT", "out"))
    steps, every = int(setting("STEPS", "100")), int(setting("SAVE_EVERY", "10"))
    torch.manual_seed(SEED)
    teacher, model = network(), network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    dist.init_process_group("gloo")
    trained = DistributedDataParallel(model)
    step = resumed(model, optimizer)
    while step < steps:
        began, step = time.monotonic(), step + 1
        inputs, answers = batch(teacher, step)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(trained(inputs), answers)
        loss.backward()
        optimizer.step()
        time.sleep(max(0.0, began + setting("STEP_S", "0") - time.monotonic()))
        print(f"step {step} loss {loss.item():.6g}", flush=True)
        if step % every == 0:
            dcp.save(content(model, optimizer, step), checkpoint_id=out / f"step-{step}")
    if dist.get_rank() == 0:
        final = json.dumps({"step": step, "sha256": digest(model)})
        (out / "final.json").write_text(final + "\n")
    dist.barrier()  # rank 0 hosts the store: it must not leave first
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
