"""A script for torchrun: Lightning's Trainer trains a small classifier on random points."""

from __future__ import annotations

import argparse

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    """Two layers; the module says how one batch is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: list[Tensor], _number: int = 0) -> Tensor:
        """The loss of a batch."""
        inputs, targets = batch
        return nn.functional.cross_entropy(self.layers(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer of all parameters."""
        return torch.optim.AdamW(self.parameters())


def make_data(batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
    """Random points, and the class of each."""
    random = torch.Generator().manual_seed(1)
    points, classes = torch.randn(640, 64, generator=random), torch.randint(10, (640,), generator=random)
    return DataLoader(TensorDataset(points, classes), batch_size, drop_last=True)


def main() -> None:
    """Trains; started by torchrun."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--devices", type=int, default=1)
    arguments = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=arguments.devices,
        strategy="ddp",
        max_epochs=arguments.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), make_data(arguments.batch_size))


if __name__ == "__main__":
    main()
