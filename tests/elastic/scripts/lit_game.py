"""A game of a generator and a discriminator in Lightning's manual optimization, in turns as its guide writes it.

Rank 0 reports a loss of the test data. With NORM set, the discriminator keeps statistics of its batches in buffers.
"""

from __future__ import annotations

import os
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import headway
from headway.integrations.lightning import elastic_trainer

run = headway.init(timeout_s=30)
pl.seed_everything(0)


class Game(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.makes = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        norm = [nn.BatchNorm1d(8)] if "NORM" in os.environ else []
        self.judges = nn.Sequential(nn.Linear(4, 8), *norm, nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch: Any, _number: int) -> None:
        (real,) = batch
        for_making, for_judging = self.optimizers()

        self.toggle_optimizer(for_making)
        loss = (self.judges(self.makes(real)) - 1).square().mean()
        self.log("making", loss)
        self.manual_backward(loss)
        for_making.step()
        for_making.zero_grad()
        self.untoggle_optimizer(for_making)

        self.toggle_optimizer(for_judging)
        made = self.makes(real).detach()
        loss = (self.judges(real + 1) - 1).square().mean() + self.judges(made).square().mean()
        self.manual_backward(loss)
        for_judging.step()
        for_judging.zero_grad()
        self.untoggle_optimizer(for_judging)

    def on_train_epoch_end(self) -> None:
        for schedule in self.lr_schedulers():
            schedule.step()

    def validation_step(self, batch: Any, _number: int) -> None:
        (real,) = batch
        self.log("eval_loss", (self.judges(self.makes(real)) - 1).square().mean())

    def configure_optimizers(self) -> Any:
        made = [torch.optim.AdamW(part.parameters(), lr=2e-2) for part in (self.makes, self.judges)]
        return made, [torch.optim.lr_scheduler.StepLR(one, step_size=1, gamma=0.8) for one in made]


training, test = TensorDataset(torch.randn(157, 4)), TensorDataset(torch.randn(64, 4))
trainer = elastic_trainer(run, max_epochs=4, enable_model_summary=False)
trainer.fit(Game(), run.loader(training, global_batch=16), DataLoader(test, batch_size=64))
