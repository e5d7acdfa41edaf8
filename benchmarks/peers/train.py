"""The script that every launcher runs: an all-reduce of 1,000 numbers and STEP_S of sleep are a step.

It goes on from the newest step-<N>.pt in CHECKPOINTS, of which rank 0 writes one every SAVE_EVERY steps. Its
start and each of its steps are lines of EVENTS, JSON each. HOW says which library the launcher wants in it:

  plain      PyTorch's own process group; with HEARTBEATS a call of NVRx in each step
  snapshots  the same, and the state after each step is kept in memory (everstep.train)
  survivors  a group that ranks outlive (everstep.train.torch)
  torchft    a manager of torchft: each rank is a replica group of its own
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
STEP_S = float(os.environ.get("STEP_S", "0.05"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "10"))
STATE_MB = int(os.environ.get("STATE_MB", "0"))
NUMBERS_OF_A_MB = 250_000
KEPT = 3
QUORUM_TRIES = 20
ENDLESS = 1_000_000_000

RANK = int(os.environ.get("REPLICA_GROUP_ID") or os.environ["RANK"])


def note(event: str, *, step: int = 0, world: int = 0) -> None:
    line = {"at": time.time(), "rank": RANK, "pid": os.getpid(), "event": event}
    with EVENTS.open("a") as file:
        file.write(json.dumps({**line, "step": step, "world": world}) + "\n")


note("begun")

import datetime as dt  # noqa: E402  # what is imported from here on is what is measured

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


class Weights:
    """A state of STATE_MB, which every step changes, alike on all ranks."""

    def __init__(self) -> None:
        self.step = 0
        self.numbers = torch.zeros(1 + STATE_MB * NUMBERS_OF_A_MB)

    def advance(self, step: int, reduced: Any) -> None:
        self.numbers += reduced.mean()
        self.step = step

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "numbers": self.numbers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])
        self.numbers.copy_(state["numbers"])

    def load_newest(self) -> None:
        steps = [int(path.stem[5:]) for path in CHECKPOINTS.glob("step-*.pt")]
        if steps:
            self.load_state_dict(torch.load(CHECKPOINTS / f"step-{max(steps)}.pt"))

    def save(self) -> None:
        """Rank 0 writes a checkpoint where one is due."""
        if RANK != 0 or self.step % SAVE_EVERY:
            return
        CHECKPOINTS.mkdir(parents=True, exist_ok=True)
        fresh = CHECKPOINTS / "fresh.part"
        torch.save(self.state_dict(), fresh)
        fresh.replace(CHECKPOINTS / f"step-{self.step}.pt")
        (CHECKPOINTS / f"step-{self.step - KEPT * SAVE_EVERY}.pt").unlink(missing_ok=True)


def stepped(step: int, world: int) -> None:
    print(f"step {step}", flush=True)
    note("step", step=step, world=world)


def heartbeat() -> Callable[[], object]:
    """The call that one launcher wants in each step."""
    if not os.environ.get("HEARTBEATS"):
        return lambda: None
    from nvidia_resiliency_ext import fault_tolerance

    client: Any = fault_tolerance.RankMonitorClient()
    client.init_workload_monitoring()
    beat: Callable[[], object] = client.send_heartbeat
    return beat


def reduced() -> Any:
    time.sleep(STEP_S)
    numbers = torch.ones(1000)
    dist.all_reduce(numbers)
    return numbers


def plain(weights: Weights, *, keeps_snapshots: bool = False) -> None:
    beat = heartbeat()
    keep: Callable[[], object] = lambda: None  # noqa: E731  # one of two
    weights.load_newest()
    if keeps_snapshots:
        from everstep.train import run

        if (restored := run.restore()) is not None:
            weights.load_state_dict(restored.state)

        def keep() -> None:
            run.step(weights.step)
            run.snapshot(weights.step, weights.state_dict())

    within = dt.timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT_S", "1800")))
    dist.init_process_group("gloo", timeout=within)
    while True:
        weights.advance(weights.step + 1, reduced())
        beat()
        stepped(weights.step, dist.get_world_size())
        keep()
        weights.save()


def survivors(weights: Weights) -> None:
    from everstep.train.torch import Group

    weights.load_newest()
    group = Group("gloo", seed=7)
    for attempt in group.steps(ENDLESS, state={"weights": weights}, done=weights.step):
        with attempt as step:
            numbers = reduced()
            with group.updating(step):
                weights.advance(step, numbers)
            stepped(step, group.world)
            weights.save()


def torchft(weights: Weights) -> None:
    from torchft import Manager, ProcessGroupGloo

    weights.load_newest()
    within = dt.timedelta(seconds=float(os.environ["GROUP_TIMEOUT_S"]))
    manager: Any = Manager(
        pg=ProcessGroupGloo(timeout=within),
        load_state_dict=weights.load_state_dict,
        state_dict=weights.state_dict,
        min_replica_size=1,
        timeout=within,
        quorum_timeout=within,
        connect_timeout=within,
        quorum_retries=QUORUM_TRIES,
        replica_id=f"peers_{RANK}",
    )
    while True:
        manager.start_quorum()
        time.sleep(STEP_S)
        numbers = torch.ones(1000)
        manager.allreduce(numbers).wait()
        if manager.should_commit():
            weights.advance(weights.step + 1, numbers)
            stepped(weights.step, manager.num_participants())
            weights.save()


def main() -> None:
    how: dict[str, Callable[[Weights], None]] = {
        "plain": plain,
        "snapshots": lambda weights: plain(weights, keeps_snapshots=True),
        "survivors": survivors,
        "torchft": torchft,
    }
    how[os.environ.get("HOW", "plain")](Weights())


if __name__ == "__main__":
    main()
