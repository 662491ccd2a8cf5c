"""The handwritten digits of examples/digits.py, trained by Hugging Face's Trainer, elastically.

    pip install 'headway[transformers]' scikit-learn
    python examples/digits_transformers.py                       # alone
    torchrun --nproc-per-node 2 examples/digits_transformers.py  # on two processes, without Headway
    headway submit examples/digits_transformers.yaml --wait      # as a job, on one or two slots

The lines with `run` make it elastic. The model is a small vision transformer with random initial weights, so nothing is
downloaded.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

from headway.integrations.transformers import elastic_class, elastic_run

TEST_DIGITS = 397


class Digits(Dataset[dict[str, torch.Tensor]]):
    """Images (1, 8, 8) in [0, 1], and labels 0 to 9."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()

    run = elastic_run()
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    training = Digits(images[:-TEST_DIGITS], labels[:-TEST_DIGITS])
    test = Digits(images[-TEST_DIGITS:], labels[-TEST_DIGITS:])

    set_seed(0)
    shape = ViTConfig(
        image_size=8, patch_size=2, num_channels=1, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=64, num_labels=10,
    )  # fmt: skip
    args = TrainingArguments(
        output_dir="digits",
        per_device_train_batch_size=64,
        num_train_epochs=options.epochs,
        learning_rate=3e-3,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
    )
    trainer = elastic_class(run, Trainer)(
        model=ViTForImageClassification(shape), args=args, train_dataset=training, eval_dataset=test,
        compute_metrics=lambda done: {"accuracy": float((done.predictions.argmax(1) == done.label_ids).mean())},
    )  # fmt: skip
    trainer.train()
    trainer.evaluate()


if __name__ == "__main__":
    main()
