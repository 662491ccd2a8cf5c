"""A small GPT over bytes, and its text: the sources of Python's standard library as files of 16-bit tokens."""

import os
import sysconfig
from pathlib import Path

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCABULARY = 256


def prepare(folder: str) -> None:
    """Write train.bin and val.bin to the folder, unless they exist."""
    for split, modules in (("train", "[a-s]*.py"), ("val", "[t-z]*.py")):
        file = Path(folder) / f"{split}.bin"
        if not file.exists():
            texts = [one.read_bytes() for one in sorted(Path(sysconfig.get_path("stdlib")).glob(modules))]
            new = file.with_suffix(f".{os.getpid()}")
            file.parent.mkdir(parents=True, exist_ok=True)
            np.frombuffer(b"".join(texts), dtype=np.uint8).astype(np.uint16).tofile(new)
            new.replace(file)  # other ranks never see a part of it


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, both with residual connections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        batch, time, width = x.shape
        parts = self.qkv(self.norm_1(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.feed_forward(self.norm_2(x))


class GPT(nn.Module):
    """A transformer that predicts the next byte."""

    def __init__(self, block_size: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of the next tokens, and the mean loss in nats per byte."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten())
