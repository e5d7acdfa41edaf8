"""A loop whose state is split over two ranks, with a copy of each part in another one; no checkpoint.

As with ZeRO or tensor parallelism beside data parallelism: ranks 0 and 2 have one part, 1 and 3 the other
one, and a step needs both. Rank 0 writes all parts down at the end.

  OUT    folder of final.json
  STEPS  number of the last step
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from everstep.train.torch import Group

OUT = Path(os.environ["OUT"])
STEPS = int(os.environ["STEPS"])
STEP_S = float(os.environ.get("STEP_S", "0"))
COPIES = [[0, 2], [1, 3]]


def save(_step: int, _state: Any) -> None:
    """Nothing is saved."""


class Part:
    """One part of the weights, with the state of its optimizer."""

    def __init__(self, number: int) -> None:
        self.weights = torch.arange(100, dtype=torch.float64) + number
        self.momentum = torch.zeros_like(self.weights)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "momentum": self.momentum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights.copy_(state["weights"])
        self.momentum.copy_(state["momentum"])

    def update(self, total: torch.Tensor) -> None:
        self.momentum.mul_(0.9).add_(self.weights * 1e-3 + total * 1e-6)
        self.weights.sub_(self.momentum)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    group = Group("gloo", seed=7)
    part = Part(group.rank % 2)
    for attempt in group.steps(STEPS, state={"part": part}, copies=COPIES):
        with attempt as step:
            total = part.weights.sum()
            dist.all_reduce(total)
            time.sleep(STEP_S)
            with group.updating(step):
                part.update(total)
            if step == STEPS:
                write_down(part, group)
    group.close()


def write_down(part: Part, group: Group) -> None:
    parts = [torch.zeros_like(part.weights) for _ in range(group.world)]
    dist.all_gather(parts, part.weights)
    if group.rank == 0:
        (OUT / "final.json").write_text(json.dumps([one.tolist() for one in parts]))


if __name__ == "__main__":
    main()
