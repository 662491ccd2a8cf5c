"""Train a small GPT, character by character, on the sources of Python's standard library, elastically.

    python examples/gpt_char.py                              # alone
    torchrun --nproc-per-node 2 examples/gpt_char.py         # on two processes, without Headway
    headway submit examples/gpt_char.yaml --wait             # as a job, on one or two slots

Every machine that can run this file has the text. After about a minute on one core, the loss on held-out text is under 2.0
nats per character; guessing among 98 characters gives 4.6.

Axes: B windows of text in a batch, T characters in a window, C channels of a character.
"""

import argparse
import itertools
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset, Subset

import headway

CONTEXT = 64
ALPHABET = "\n\t" + "".join(map(chr, range(32, 127)))
UNKNOWN = len(ALPHABET)
VOCABULARY = len(ALPHABET) + 1


def standard_library(characters: int) -> Tensor:
    """Return the first characters of the standard library's modules, ordered by name, as tokens."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = itertools.chain.from_iterable(path.read_text("utf-8", errors="replace") for path in modules)
    token = {character: number for number, character in enumerate(ALPHABET)}
    return torch.tensor([token.get(one, UNKNOWN) for one in itertools.islice(text, characters)])


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Windows of text (T,), each with the character that follows each of its characters (T,)."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self.tokens[index * CONTEXT : (index + 1) * CONTEXT + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, both with residual connections."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.project = nn.Linear(channels, channels)
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, C) to (B, T, C)."""
        b, t, c = x.shape
        qkv = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(b, t, c))
        return x + self.feed_forward(self.norm_2(x))


class CharacterGpt(nn.Module):
    """GPT over characters with a quarter of a million parameters."""

    def __init__(self, channels: int = 96, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.character = nn.Embedding(VOCABULARY, channels)
        self.place = nn.Parameter(torch.zeros(CONTEXT, channels))
        self.blocks = nn.Sequential(*(Block(channels, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, T) to scores of the next token (B, T, VOCABULARY)."""
        x = self.character(tokens) + self.place[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def loss_of(model: nn.Module, tokens: Tensor, following: Tensor) -> Tensor:
    """Return the mean loss in nats per character."""
    return cross_entropy(model(tokens).flatten(0, 1), following.flatten())


@torch.no_grad()
def held_out_loss(model: nn.Module, windows: Dataset[tuple[Tensor, Tensor]], device: torch.device) -> float:
    batches = DataLoader(windows, batch_size=128, drop_last=True)
    losses = [loss_of(model, tokens.to(device), following.to(device)) for tokens, following in batches]
    return torch.stack(losses).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--characters", type=int, default=600_000, help="length of the text")
    options = parser.parse_args()

    torch.manual_seed(0)
    run = headway.init()
    windows = Windows(standard_library(options.characters))
    held_out = Subset(windows, range(0, len(windows), 20))
    training = Subset(windows, [index for index in range(len(windows)) if index % 20])
    loader = run.loader(training, global_batch=32, seed=0)
    model = CharacterGpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    steps = options.epochs * loader.steps_per_epoch
    schedule = OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps + 1)
    model, optimizer, schedule = run.prepare(model, optimizer, schedule)

    for _ in run.epochs(options.epochs):
        for step, (window, following) in enumerate(loader):
            loss = loss_of(model, window, following)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % 25 == 0:
                run.report(train_loss=loss)
        run.report(loss=held_out_loss(model, held_out, run.device))


if __name__ == "__main__":
    main()
