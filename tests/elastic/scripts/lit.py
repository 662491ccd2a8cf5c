"""A small regression with Lightning to the step 35, within its fourth epoch. Rank 0 reports the loss of the test data."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import headway
from headway.integrations.lightning import elastic_trainer

run = headway.init(timeout_s=30)
pl.seed_everything(0)


class Fitted(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch: Any, _number: int) -> torch.Tensor:
        x, y = batch
        return mse_loss(self.net(x).float(), y)

    def validation_step(self, batch: Any, _number: int) -> None:
        x, y = batch
        self.log("eval_loss", mse_loss(self.net(x).float(), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.8)
        return [optimizer], [schedule]


def made(samples: int) -> TensorDataset:
    x = torch.randn(samples, 8)
    return TensorDataset(x, torch.sin(x[:, :1] + x[:, 1:2]))


trainer = elastic_trainer(run, max_steps=35, gradient_clip_val=1.0, enable_model_summary=False)
training, test = made(157), made(64)
trainer.fit(
    Fitted(), run.loader(training, global_batch=16, max_local_batch=6), DataLoader(test, batch_size=64)
)
