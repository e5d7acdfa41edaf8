"""Ranks that save with a real library, and are killed while they do: run by an interpreter that has PyTorch.

`python saving.py LIBRARY FOLDER SEED KILLS`. The library is imported once; the ranks of each start are forks.
They go on from the checkpoint that an agent would choose, the library reads it, and every weight in it has
to be the number of its step. Each start saves two checkpoints and is killed at a random moment of what
follows: one rank first, the others soon after, as an agent ends them.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from everstep.agent.prewarming.fork_server import PR_SET_PDEATHSIG
from everstep.agent.processes import libc
from everstep.agent.storage import checkpoint_names
from everstep.agent.storage.checkpoints import scan
from everstep.processes import free_port

WEIGHTS = 500_000
ELSEWHERE = Path("/dev/shm")
"""Lightning makes a file here and moves it: to another disk that is a copy, which can be cut off."""


class Start(NamedTuple):
    """The start arguments of a rank."""

    folder: Path
    rank: int
    step: int  # of the checkpoint; 0: there is none
    path: Path | None
    saved: Callable[[], object]  # to be called whenever this rank has saved


def weights(step: int) -> torch.Tensor:
    return torch.full((WEIGHTS,), float(step))


def check(start: Start, tensor: torch.Tensor) -> None:
    """What was read is what was saved."""
    assert torch.equal(tensor.detach(), weights(start.step)), start


class Model(torch.nn.Module):  # type: ignore[misc]  # mypy does not see what it inherits
    """With a rate of 1 every weight is the number of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(weights(0))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": -self.weights.sum() - 0 * x.sum()}


# -- Libraries ----------------------------------------------------------------------------------


def with_torch(start: Start) -> None:
    if start.path is not None:
        check(start, torch.load(start.path, weights_only=True)["weights"])
    for step in range(start.step + 1, sys.maxsize):
        torch.save({"weights": weights(step)}, start.folder / f"step-{step}.pt")
        start.saved()


def with_dcp(start: Start) -> None:
    # They meet in a file: a port that was free when it was chosen may be taken when torch listens on it.
    dist.init_process_group(
        "gloo",
        init_method=os.environ["MEETING"],
        rank=start.rank,
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    state = {"weights": weights(0), f"own {start.rank}": weights(0)}
    if start.path is not None:
        dcp.load(state, checkpoint_id=start.path)
    for value in state.values():
        check(start, value)
    for step in range(start.step + 1, sys.maxsize):
        state = {name: weights(step) for name in state}
        dcp.save(state, checkpoint_id=start.folder / f"step-{step}")
        start.saved()


def with_transformers(start: Start) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class SavesReported(TrainerCallback):  # type: ignore[misc]  # mypy does not see what it inherits
        def on_train_begin(self, *_: Any, model: Model, **__: Any) -> None:
            check(start, model.weights)

        def on_save(self, *_: Any, **__: Any) -> None:
            start.saved()

    if start.path is not None:  # the trainer goes on without this one, and has other random numbers
        torch.load(start.path / f"rng_state_{start.rank}.pth", weights_only=False)
    model = Model()
    rate = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(start.folder),
            max_steps=1_000_000,
            save_steps=1,
            per_device_train_batch_size=1,
            max_grad_norm=0.0,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=[{"x": torch.zeros(1)} for _ in range(1_000)],
        optimizers=(rate, torch.optim.lr_scheduler.ConstantLR(rate, factor=1.0)),
        callbacks=[SavesReported()],
    )
    trainer.train(resume_from_checkpoint=start.path and str(start.path))


def with_lightning(start: Start) -> None:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    class ModelWithSavesReported(LightningModule):  # type: ignore[misc]  # mypy does not see what it inherits
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.began = Model(), False

        def on_train_start(self) -> None:
            check(start, self.inner.weights)

        def on_train_batch_start(self, *_: Any) -> None:
            if self.began:
                start.saved()
            self.began = True

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.inner(batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1.0)

    Trainer(
        max_steps=1_000_000,
        accelerator="cpu",
        callbacks=[ModelCheckpoint(start.folder, every_n_train_steps=1, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(
        ModelWithSavesReported(),
        torch.utils.data.DataLoader(torch.zeros(1_000, 1)),
        ckpt_path=start.path,
    )


LIBRARIES: Mapping[str, tuple[Callable[[Start], None], int, tuple[str, ...]]] = {
    "torch": (with_torch, 1, ()),
    "dcp": (with_dcp, 2, ()),
    "transformers": (with_transformers, 2, ("torch._dynamo", "transformers.trainer", "accelerate")),
    "lightning": (with_lightning, 1, ("torch._dynamo", "lightning.pytorch")),
}
"""How each saves, in how many ranks, and what takes long to import."""


# -- Starting and killing -----------------------------------------------------------------------


class Rank(NamedTuple):
    """A fork."""

    pid: int
    saves: int  # a pipe: a byte for each checkpoint

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.saves)


def forked(library: str, start: Start, env: Mapping[str, str]) -> Rank:
    saves_read, saves_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            libc.call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
            os.environ |= env
            os.close(saves_read)
            LIBRARIES[library][0](start._replace(saved=lambda: os.write(saves_write, b".")))
        finally:
            traceback.print_exc()
            os._exit(1)
    os.close(saves_write)
    return Rank(pid, saves_read)


class Kills:
    """The kills of one library, in one folder."""

    def __init__(self, library: str, folder: Path, chance: random.Random, elsewhere: Path) -> None:
        self.library, self.folder, self.chance, self.elsewhere = library, folder, chance, elsewhere
        self.step = 0
        self.path: Path | None = None
        self.ends: list[float] = []
        self.torn = 0

    def once_more(self) -> None:
        ranks = self._started()
        _until_all_have_saved(ranks)
        began = time.monotonic()
        _until_all_have_saved(ranks)
        usual_s = time.monotonic() - began
        self.chance.shuffle(ranks)
        for rank in ranks:
            time.sleep(self.chance.uniform(0, 1.5 * usual_s))
            rank.kill()
            self.ends.append(time.time())
        self._choose()
        for path in self.elsewhere.iterdir():  # nobody else removes what a killed one leaves there
            path.unlink()

    def goes_on(self) -> None:
        """From the last that was chosen."""
        ranks = self._started()
        _until_all_have_saved(ranks)
        for rank in ranks:
            rank.kill()

    def _started(self) -> list[Rank]:
        count = LIBRARIES[self.library][1]
        shared = {
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "MEETING": f"file://{self.elsewhere}/meeting",  # a new file for each start
        }
        return [
            forked(
                self.library,
                Start(self.folder, rank, self.step, self.path, lambda: None),
                {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(count)
        ]

    def _choose(self) -> None:
        checkpoints = scan(str(self.folder), ended_between=[(end, end) for end in self.ends])
        chosen = next(saved for saved in checkpoints if saved["good"])
        step = chosen["step"] or 0
        assert step >= self.step + 2, f"step {self.step + 2} was whole, {step} is chosen"
        steps = {path: _step(path) for path in self.folder.iterdir()}
        self.torn += max(steps.values()) > step
        self.step, self.path = step, Path(chosen["path"])
        for path in (path for path, number in steps.items() if number < step - 1):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _until_all_have_saved(ranks: Sequence[Rank]) -> None:
    waited = {rank.saves for rank in ranks}
    while waited:
        for saves in select.select(waited, (), ())[0]:
            assert os.read(saves, 1), "a rank ended by itself"
            waited.remove(saves)


def _step(path: Path) -> int:
    name = checkpoint_names.read(path.name)
    return -1 if name is None or name.step is None else name.step


def main() -> None:
    library, folder, seed, kills = sys.argv[1:]
    for name in LIBRARIES[library][2]:
        importlib.import_module(name)
    torch.set_num_threads(1)
    gc.freeze()  # a fork that looks for garbage copies every page that it looks at: seconds
    Path(folder).mkdir()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=ELSEWHERE) as elsewhere:
        tempfile.tempdir = elsewhere
        killed = Kills(library, Path(folder), random.Random(f"{seed} {library}"), Path(elsewhere))
        for _ in range(int(kills)):
            killed.once_more()
        killed.goes_on()
    sys.stdout.write(
        f"{library}: seed {seed}, {kills} kills, {killed.torn} in the middle of a checkpoint, "
        f"reached step {killed.step} in {time.monotonic() - began:.1f} s\n"
    )


if __name__ == "__main__":
    main()
