"""A small regression with Lightning to the step 35, within its fourth epoch. Rank 0 reports the loss of the test data.

With HALF set, in half precision with a scaled loss, whose gradient overflows in one step of each epoch. The scale is reported.
"""

from __future__ import annotations

import os
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import headway
from headway.integrations.lightning import elastic_trainer

run = headway.init(timeout_s=30)
half = []
if "HALF" in os.environ:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=3)
    half = [MixedPrecision("16-mixed", "cpu", scaler)]
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
        if half:
            self.log("scale", half[0].scaler.get_scale())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.8)
        return [optimizer], [schedule]


def made(samples: int) -> TensorDataset:
    x = torch.randn(samples, 8)
    return TensorDataset(x, torch.sin(x[:, :1] + x[:, 1:2]))


training, test = made(157), made(64)
if half:
    training.tensors[1][11] = float("inf")
trainer = elastic_trainer(run, max_steps=35, gradient_clip_val=1.0, enable_model_summary=False, plugins=half)
trainer.fit(
    Fitted(), run.loader(training, global_batch=16, max_local_batch=6), DataLoader(test, batch_size=64)
)
