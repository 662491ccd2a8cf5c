"""Train a tiny Llama with PyTorch Lightning: before Headway."""

import lightning.pytorch as pl
import tiny
import torch
from torch.utils.data import DataLoader


class LanguageModel(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = tiny.model()

    def training_step(self, batch: dict[str, torch.Tensor], _number: int) -> torch.Tensor:
        return self.net(**batch).loss

    def validation_step(self, batch: dict[str, torch.Tensor], _number: int) -> None:
        self.log("eval_loss", self.net(**batch).loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


# Equally long texts: the loss of a batch is then a mean over its samples.
training, test = tiny.Sums(160, seed=1, digits=4), tiny.Sums(64, seed=2, digits=4)
data = DataLoader(training, batch_size=16, shuffle=True, collate_fn=tiny.collate)
trainer = pl.Trainer(max_epochs=4, gradient_clip_val=1.0)
trainer.fit(LanguageModel(), data, DataLoader(test, batch_size=64, collate_fn=tiny.collate))
