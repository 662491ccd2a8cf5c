"""A tiny model and its text for the recipes of this folder. Nothing is downloaded.

The model is a Llama of 40 thousand random parameters, which reads and writes single characters.
"""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = "0123456789+= "
PADDING, END = len(CHARACTERS), len(CHARACTERS) + 1
IGNORED = -100
"""Label of a position that does not count in the loss, as in torch."""


def model() -> LlamaForCausalLM:
    """Return the model, the same in every process."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=END + 1, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=32, pad_token_id=PADDING, bos_token_id=None, eos_token_id=END,
    )  # fmt: skip
    return LlamaForCausalLM(shape)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that knows single characters."""
    vocabulary = {character: number for number, character in enumerate(CHARACTERS)}
    words = Tokenizer(WordLevel({**vocabulary, "<pad>": PADDING, "<end>": END}, unk_token="<pad>"))
    words.pre_tokenizer = Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")


def sums(count: int, seed: int, *, digits: int = 1) -> list[str]:
    """Return additions such as `12+7=19`, with numbers of at least so many digits."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(0, 1000, (count, 2), generator=generator).tolist()
    return [f"{a:0{digits}}+{b:0{digits}}={a + b:0{digits}}" for a, b in pairs]


class Sums(Dataset[dict[str, list[int]]]):
    """Additions as the numbers of their characters."""

    def __init__(self, count: int, seed: int, *, digits: int = 1) -> None:
        self.texts = sums(count, seed, digits=digits)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": [*map(CHARACTERS.index, self.texts[index]), END]}


def collate(samples: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Return a batch of additions, padded to the longest."""
    rows = [torch.tensor(sample["input_ids"]) for sample in samples]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)
    real = ids != PADDING
    return {"input_ids": ids, "attention_mask": real.long(), "labels": ids.where(real, IGNORED)}
