"""Small models of tokens (B, 5) in double precision, which differ in where their back-propagation can stop."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

TOKENS, WIDTH = 7, 8


class Outside(nn.Module):
    """Blocks between an embedding and a head with the same weight, with residual connections around the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.embedding(x)
        for block in self.blocks:
            h = h + block(h)
        logits: Tensor = self.head(h)
        return logits


class Bypassed(nn.Module):
    """Two layers around which a connection leads, so that the backward pass cannot stop at either."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        return (h + self.second(torch.tanh(self.first(h))))[..., :TOKENS]  # type: ignore[no-any-return]


class Block(nn.Module):
    """A layer with its residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.layer(self.norm(h))  # type: ignore[no-any-return]


class Tied(Outside):
    """The same with residual connections inside of the blocks, as in most transformers: each block is a cut."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.embedding(x)
        for block in self.blocks:
            h = block(h)
        logits: Tensor = self.head(h)
        return logits


def chain() -> nn.Module:
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    return nn.Sequential(
        nn.Embedding(TOKENS, WIDTH), layers[0], nn.Tanh(), layers[1], nn.Tanh(), nn.Linear(WIDTH, TOKENS)
    )


def wide() -> nn.Module:
    """The first two layers have a bucket of DDP of their own, because the others fill the first one (1 MB)."""
    return nn.Sequential(
        nn.Embedding(TOKENS, WIDTH),
        nn.Linear(WIDTH, 512),
        nn.Tanh(),
        nn.Linear(512, 512),
        nn.Tanh(),
        nn.Linear(512, TOKENS),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "chain": chain,
    "wide": wide,
    "tied": Tied,
    "outside": Outside,
    "bypassed": Bypassed,
}


def make_model(name: str) -> nn.Module:
    """The model of this name, with the same parameters in every process."""
    torch.manual_seed(1)
    return MODELS[name]().double()
