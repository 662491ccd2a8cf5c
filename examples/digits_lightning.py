"""The handwritten digits of examples/digits.py, trained by PyTorch Lightning, elastically.

    pip install 'headway[lightning]' scikit-learn
    python examples/digits_lightning.py                    # alone
    headway submit examples/digits_lightning.yaml --wait   # as a job, on one or two slots

The lines with `run` make it elastic: as a job it may grow, shrink, move, pause or lose a process at any step, and still trains
on every sample exactly once an epoch.
"""

import argparse

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import headway
from headway.integrations.lightning import elastic_trainer

TEST_DIGITS = 397


class Reader(pl.LightningModule):
    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.epochs = epochs
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: list[torch.Tensor], _number: int) -> torch.Tensor:
        images, labels = batch
        loss = cross_entropy(self.layers(images), labels)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _number: int) -> None:
        images, labels = batch
        self.log("accuracy", (self.layers(images).argmax(dim=1) == labels).float().mean())

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.epochs)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()

    pl.seed_everything(0, verbose=False)
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    data = TensorDataset(images[:-TEST_DIGITS], labels[:-TEST_DIGITS])
    test = TensorDataset(images[-TEST_DIGITS:], labels[-TEST_DIGITS:])

    run = headway.init()
    trainer = elastic_trainer(run, max_epochs=options.epochs, enable_model_summary=False)
    trainer.fit(
        Reader(options.epochs),
        run.loader(data, global_batch=64, seed=0),
        DataLoader(test, batch_size=TEST_DIGITS),
    )


if __name__ == "__main__":
    main()
