"""Snapshots for the Trainer of Lightning: one callback.

    Trainer(..., callbacks=[snapshots()])

Each step is reported and kept. A restarted rank goes on as the Trainer does from a checkpoint of the same
step, and with the same random numbers. Where that is in the middle of an epoch, Lightning begins the loader
again, unless that has a state of its own (`StatefulDataLoader`).
"""

from __future__ import annotations

import random
import sys
from typing import Any

from everstep.train import run


def snapshots(*, every: int = 1) -> Any:
    """A callback that keeps the state after each step, or each so many steps, and restores it.

    It goes on from there where the job resumes from memory, whatever `ckpt_path` says.
    """
    from lightning.pytorch.callbacks import Callback

    class Snapshots(Callback):  # type: ignore[misc]  # mypy does not see what it inherits
        def __init__(self) -> None:
            self._step = -1
            self._random: Any = None

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
            if stage != "fit" or (restored := run.restore()) is None:
                return
            self._step, self._random = restored.step, restored.state["random"]
            connector = trainer._checkpoint_connector
            begin = connector.resume_start

            def resume(*_: Any, **__: Any) -> None:
                begin(None)
                connector._loaded_checkpoint = restored.state["checkpoint"]

            connector.resume_start = resume

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            if self._random is not None:
                _set_random_numbers(self._random)
                self._random = None

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            step = trainer.global_step
            if step == self._step or not run.is_managed:
                return  # gradients are accumulated
            self._step = step
            run.step(step)
            if step % every == 0:
                checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
                run.snapshot(step, {"checkpoint": checkpoint, "random": _random_numbers()})

    return Snapshots()


def _random_numbers() -> dict[str, Any]:
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    return {
        "python": random.getstate(),
        "numpy": None if numpy is None else numpy.random.get_state(),
        "cpu": torch.random.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None,
    }


def _set_random_numbers(states: dict[str, Any]) -> None:
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    random.setstate(states["python"])
    torch.random.set_rng_state(states["cpu"])
    if numpy is not None and states["numpy"] is not None:
        numpy.random.set_state(states["numpy"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state_all(states["cuda"])
