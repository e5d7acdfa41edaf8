"""The script that every launcher runs: an all-reduce of 1,000 numbers and 50 ms of sleep are a step.

It goes on from the newest step-<N>.json in CHECKPOINTS and writes one every ten steps. When it was begun,
had PyTorch, had its group and had made its first step is appended to EVENTS, a JSON line each.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVENTS = Path(os.environ["EVENTS"])
CHECKPOINTS = Path(os.environ["CHECKPOINTS"])
STEP_S = 0.05
KEPT = 30


def tell(event: str) -> None:
    line = {"at": time.time(), "rank": RANK, "pid": os.getpid(), "event": event}
    with EVENTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


RANK = int(os.environ["RANK"])
tell("begun")

import datetime as dt  # noqa: E402  # what is imported from here on is what is measured

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

tell("imported")


def saved() -> int:
    return max((int(path.stem[5:]) for path in CHECKPOINTS.glob("step-*.json")), default=0)


def save(step: int) -> None:
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    fresh = CHECKPOINTS / ".fresh"
    fresh.write_text(json.dumps({"step": step}))
    fresh.replace(CHECKPOINTS / f"step-{step}.json")
    (CHECKPOINTS / f"step-{step - KEPT}.json").unlink(missing_ok=True)


def heartbeat() -> Callable[[], object]:
    """What one launcher wants to be called in each step."""
    if not os.environ.get("HEARTBEATS"):
        return lambda: None
    from nvidia_resiliency_ext import fault_tolerance

    client: Any = fault_tolerance.RankMonitorClient()
    client.init_workload_monitoring()
    beat: Callable[[], object] = client.send_heartbeat
    return beat


def main() -> None:
    beat = heartbeat()
    step = saved()
    within = dt.timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT_S", "1800")))
    dist.init_process_group("gloo", timeout=within)
    tell("grouped")
    first = step + 1
    while True:
        step += 1
        time.sleep(STEP_S)
        dist.all_reduce(torch.ones(1000))
        beat()
        print(f"step {step}", flush=True)
        if step == first:
            tell("stepped")
        if RANK == 0 and step % 10 == 0:
            save(step)


if __name__ == "__main__":
    main()
