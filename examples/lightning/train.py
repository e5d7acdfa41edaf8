"""A small network, trained by the Trainer of Lightning on made-up numbers.

An ordinary script: nothing of Everstep is imported. The Trainer saves by itself at the end of every
epoch, and goes on from EVERSTEP_RESUME_PATH, the newest of its checkpoints that is whole; that is the one
line that differs.

What drives it, from the environment: EPOCHS (6), OUT (out).
"""

from __future__ import annotations

import os

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

INPUTS, SAMPLES, BATCH = 16, 160, 8


class Fitted(LightningModule):  # type: ignore[misc]  # mypy does not see what it inherits
    """Learns the sum of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(INPUTS, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        )

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        inputs, wanted = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), wanted)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def samples() -> TensorDataset:
    inputs = torch.randn(SAMPLES, INPUTS, generator=torch.Generator().manual_seed(7))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def main() -> None:
    seed_everything(7)
    trainer = Trainer(
        max_epochs=int(os.environ.get("EPOCHS", "6")),
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        default_root_dir=os.environ.get("OUT", "out"),
        callbacks=[ModelCheckpoint(dirpath=os.environ.get("OUT", "out"), save_top_k=-1)],
        logger=False,
        log_every_n_steps=1,
    )
    model, data = Fitted(), DataLoader(samples(), batch_size=BATCH, shuffle=True)
    trainer.fit(model, data, ckpt_path=os.environ.get("EVERSTEP_RESUME_PATH"))


if __name__ == "__main__":
    main()
