"""Train a small GPT, character by character, on the sources of Python's standard library.

    headway submit examples/gpt_char.yaml --wait
    python examples/gpt_char.py

The text is on every machine that can run this file. After about a minute on one core the loss is
under 2.0 nats per character (4.6 is guessing, 3.3 is knowing how frequent each character is).
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

import headway

VOCABULARY = 98  # printable ASCII, newline, tab, and one for everything else


def encode(text: str) -> torch.Tensor:
    """Characters as numbers, shape (len(text),)."""
    codes = torch.tensor([ord(character) for character in text], dtype=torch.int64)
    tokens = torch.where((codes >= 32) & (codes < 127), codes - 32, torch.full_like(codes, 97))
    tokens[codes == 10] = 95
    tokens[codes == 9] = 96
    return tokens


def standard_library(characters: int) -> torch.Tensor:
    """The first so many characters of the standard library's modules, in the order of their names."""
    pieces: list[str] = []
    length = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        piece = path.read_text(encoding="utf-8", errors="replace")
        pieces.append(piece)
        length += len(piece)
        if length >= characters:
            break
    return encode("".join(pieces)[:characters])


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Stretches of text, each with itself moved on by one character."""

    def __init__(self, tokens: torch.Tensor, context: int) -> None:
        self._tokens = tokens
        self._context = context

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._context

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self._context
        piece = self._tokens[start : start + self._context + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each after a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:  # noqa: N803 - batch, time, channels
        batch, time, width = x_BTC.shape
        qkv = self.qkv(self.norm_1(x_BTC)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTC = x_BTC + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x_BTC + self.feed_forward(self.norm_2(x_BTC))


class CharacterGpt(nn.Module):
    """A GPT of a few hundred thousand parameters."""

    def __init__(self, *, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.place = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:  # noqa: N803
        places = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        hidden = self.token(tokens_BT) + self.place(places)
        return self.head(self.norm(self.blocks(hidden)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--characters", type=int, default=600_000)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    run = headway.init()
    context = 64
    dataset = Windows(standard_library(arguments.characters), context)
    model = CharacterGpt(width=96, layers=2, heads=4, context=context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    steps = arguments.epochs * len(dataset) // 32
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps + 8)
    model, optimizer, schedule = run.prepare(model, optimizer, schedule)
    loader = run.loader(dataset, global_batch=32, seed=0)

    smooth = None
    for _ in run.epochs(arguments.epochs):
        for step, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
            if step % 20 == 0:
                run.report(loss=smooth)
        if smooth is not None:
            run.report(loss=smooth)


if __name__ == "__main__":
    main()
