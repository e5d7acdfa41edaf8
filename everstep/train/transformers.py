"""Snapshots for the Trainer of Hugging Face: one line, between its making and `train`.

    keep_snapshots(trainer)
    trainer.train(resume_from_checkpoint=os.environ.get("EVERSTEP_RESUME_PATH"))

Each step is reported and kept. A restarted rank goes on as the Trainer does from a checkpoint (weights,
optimizer, schedule, random numbers, place in the data), which is written from memory for it. Trainers that
split a model over ranks (FSDP, DeepSpeed) and adapters of PEFT load in ways of their own: they keep none.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from everstep.train import run

WEIGHTS, OPTIMIZER, SCHEDULE, SCALER = (
    "pytorch_model.bin",
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
)
STATE = "trainer_state.json"


def keep_snapshots(trainer: Any, *, every: int = 1) -> None:
    """Keep the state after each step, or each so many; go on from it where the job resumes from memory."""
    if not run.is_managed:
        return
    if why := _unsupported(trainer):
        sys.stderr.write(f"everstep: no snapshots in memory: {why}\n")
        return
    restored = run.restore()
    folder = (
        Path(tempfile.gettempdir()) / f"everstep-{os.environ['EVERSTEP_POD']}-{os.environ['RANK']}"
    )
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed while it began
    trainer.add_callback(_callback(trainer, every, folder))
    if restored is None:
        return
    train = trainer.train

    def resumed(resume_from_checkpoint: Any = None, *rest: Any, **more: Any) -> Any:  # noqa: ARG001  # memory is newer
        _write(trainer, restored.state, folder)
        return train(str(folder), *rest, **more)

    trainer.train = resumed


def _unsupported(trainer: Any) -> str:
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return "the model is split over ranks"
    return "the model has adapters" if hasattr(trainer.model, "peft_config") else ""


def _callback(trainer: Any, every: int, folder: Path) -> Any:
    from transformers import TrainerCallback

    class Snapshots(TrainerCallback):  # type: ignore[misc]  # mypy does not see what it inherits
        def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            shutil.rmtree(folder, ignore_errors=True)  # everything was read for the first step
            run.step(state.global_step)
            if state.global_step % every == 0:
                run.snapshot(state.global_step, _state(trainer, state))

    return Snapshots()


def _state(trainer: Any, state: Any) -> dict[str, Any]:
    scaler = getattr(trainer.accelerator, "scaler", None)
    return {
        "model": trainer.accelerator.unwrap_model(trainer.model).state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "schedule": trainer.lr_scheduler.state_dict(),
        "scaler": None if scaler is None else scaler.state_dict(),
        "random": _random_numbers(trainer),
        "state": dict(vars(state)),
    }


def _random_numbers(trainer: Any) -> dict[str, Any]:
    """The states of the generators, under the names that the Trainer reads."""
    torch, numpy = sys.modules["torch"], sys.modules["numpy"]  # the Trainer has loaded both
    states = {
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        cuda = torch.cuda.random
        states["cuda"] = (
            cuda.get_rng_state_all() if trainer.args.world_size > 1 else cuda.get_rng_state()
        )
    npu = getattr(torch, "npu", None)
    if npu is not None and npu.is_available():
        is_one = trainer.args.world_size == 1
        states["npu"] = npu.random.get_rng_state() if is_one else npu.random.get_rng_state_all()
    return states


def _write(trainer: Any, memory: dict[str, Any], folder: Path) -> None:
    """Write the checkpoint that the Trainer begins with."""
    import torch

    folder.mkdir(mode=0o700)
    names = {WEIGHTS: "model", OPTIMIZER: "optimizer", SCHEDULE: "schedule", SCALER: "scaler"}
    for name, key in names.items():
        if memory[key] is not None:
            torch.save(memory[key], folder / name)
    index = f"_{trainer.args.process_index}" if trainer.args.world_size > 1 else ""
    torch.save(memory["random"], folder / f"rng_state{index}.pth")
    state = type(trainer.state)(**_of_dataclass(trainer.state, memory["state"]))
    (folder / STATE).write_text(json.dumps(dataclasses.asdict(state)))


def _of_dataclass(value: Any, fields: dict[str, Any]) -> dict[str, Any]:
    return {one.name: fields[one.name] for one in dataclasses.fields(value) if one.name in fields}
