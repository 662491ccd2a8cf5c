"""Checksums of a bounded sample of a dataset's contents, by which a new rank shows that it has read what the others train on.

Compared is only what a difference of bytes proves: arrays and plain values of which `TensorDataset`, `Subset`, `ConcatDataset`,
lists, tuples, tensors and arrays make their items. A dataset of a class of its own may draw, count or cache as it is read, so
only its present length counts.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence, Sized
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

MOST_BYTES = 1 << 20
"""Bytes of a dataset that are compared; one that is smaller is compared whole."""
MOST_SAMPLES = 1024
_SAMPLE_BYTES = 4096
"""Bytes at the begin of each array of a sample that are compared, where the dataset is larger."""
_DEEPEST = 8
_PLAIN = (int, float, complex, bool, str, bytes, type(None))


def contents_of(dataset: Dataset[Any] | Sequence[Any], seed: int) -> dict[str, str]:
    """Return the present length of the dataset, and a checksum of up to 1,024 samples and 1 MiB, drawn by the seed.

    The checksum is left out if nothing of the samples can be compared. No sample is read by the dataset's own code.
    """
    if not isinstance(dataset, Sized):
        return {}
    found = {"present length of the dataset": str(len(dataset))}
    total = compared = 0
    for part in sampled_bytes(dataset, seed):
        total, compared = zlib.crc32(part, total), compared + 1
    if compared:
        found["checksum of samples of the dataset"] = f"{total:08x}"
    return found


def sampled_bytes(dataset: Any, seed: int) -> Iterator[bytes]:
    """Yield the bytes that are compared, array by array: of all samples in a small dataset, else of those that the seed draws."""
    length, left = len(dataset), MOST_BYTES
    whole = length <= MOST_SAMPLES
    drawn = range(length) if whole else random.Random(seed).sample(range(length), MOST_SAMPLES)
    for number in drawn:
        for part in _parts(dataset, number, _DEEPEST):
            yield part[: left if whole else min(left, _SAMPLE_BYTES)]
            left -= min(len(part), left if whole else _SAMPLE_BYTES)
            if left <= 0:
                return


def _parts(dataset: Any, number: int, deepest: int) -> list[bytes]:
    """Return the bytes of one sample, as far as they can be compared, without calling a class of the script."""
    if not deepest:
        return []
    kind = type(dataset)
    if kind is TensorDataset:
        return [part for one in dataset.tensors for part in _bytes_of(one[number], deepest)]
    if kind is Subset:
        return _parts(dataset.dataset, int(dataset.indices[number]), deepest - 1)
    if kind is ConcatDataset:
        for part, end in zip(dataset.datasets, dataset.cumulative_sizes, strict=True):
            if number < end:
                return _parts(part, number - end + len(part), deepest - 1)
        return []
    if kind in {list, tuple, torch.Tensor, np.ndarray}:
        return _bytes_of(dataset[number], deepest)
    return []


def _bytes_of(value: Any, deepest: int) -> list[bytes]:
    """Return the bytes of a value of tensors, arrays and plain values; nothing for what is of another type."""
    kind = type(value)
    if kind is torch.Tensor:
        with suppress(
            RuntimeError, TypeError, NotImplementedError
        ):  # no memory to read: sparse, meta or nested
            flat = value.detach().reshape(-1)[:MOST_BYTES].contiguous().view(torch.uint8)[:MOST_BYTES]
            return [flat.cpu().numpy().tobytes()]
        return []
    if isinstance(value, np.ndarray | np.generic):
        flat_array = np.asarray(value).reshape(-1)[:MOST_BYTES]
        return [] if flat_array.dtype.hasobject else [flat_array.tobytes()[:MOST_BYTES]]
    if kind in {list, tuple} and deepest:
        return [part for one in value[:MOST_SAMPLES] for part in _bytes_of(one, deepest - 1)]
    return [repr(value).encode()] if kind in _PLAIN else []
