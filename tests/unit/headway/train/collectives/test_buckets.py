"""The stream of bytes in which a rank's tensors go to others: every tensor arrives as it was, bucket by bucket."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headway.train.collectives.buckets import carry, into_buckets, stream_bytes

CPU = torch.device("cpu")
DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.bool,
    torch.uint8,
    torch.int64,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
shapes = st.lists(st.integers(0, 40), max_size=3)
buckets = st.sampled_from([512, 1000, 4096, 1 << 20])


class Under:
    """A broadcast under way, which fills the receiver's buffer when it is waited for."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def wait(self) -> None:
        self._act()


def sent(tensors: Sequence[Tensor], bucket_bytes: int) -> list[Tensor]:
    """Return what is broadcast, each as it is when the work is waited for."""
    said: list[Tensor] = []

    def send(buffer: Tensor) -> Under:
        return Under(lambda: said.append(buffer.clone()))

    nbytes = stream_bytes([one.nbytes for one in tensors])
    carry(tensors, nbytes, send, fills=True, device=CPU, bucket_bytes=bucket_bytes)
    return said


def receive(said: Sequence[Tensor], tensors: Sequence[Tensor], nbytes: int, bucket_bytes: int) -> None:
    left = deque(said)

    def hear(buffer: Tensor) -> Under:
        one = left.popleft()
        assert one.nbytes == buffer.nbytes
        return Under(lambda: buffer.copy_(one))

    carry(tensors, nbytes, hear, fills=False, device=CPU, bucket_bytes=bucket_bytes)
    assert not left


def made(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Any bits, those of a NaN among them."""
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    most = 2 if dtype == torch.bool else 256
    return torch.randint(0, most, [nbytes], dtype=torch.uint8).view(dtype).reshape(shape)


def bits(one: Tensor) -> list[int]:
    found: list[int] = one.reshape(-1).view(torch.uint8).tolist()
    return found


@given(st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), max_size=6), buckets)
def test_tensors_of_any_kind_arrive_bit_by_bit(
    kinds: Sequence[tuple[list[int], torch.dtype]], bucket_bytes: int
) -> None:
    tensors = [made(*kind) for kind in kinds]
    empty = [torch.empty_like(one) for one in tensors]
    said = sent(tensors, bucket_bytes)
    assert all(one.nbytes == bucket_bytes for one in said[:-1])
    nbytes = stream_bytes([one.nbytes for one in tensors])
    receive(said, empty, nbytes, bucket_bytes)
    assert [bits(one) for one in empty] == [bits(one) for one in tensors]
    receive(said, [], nbytes, bucket_bytes)  # one that only takes part


@given(st.lists(st.integers(0, 5000), max_size=8), buckets)
def test_the_pieces_are_every_byte_of_every_tensor_once(sizes: list[int], bucket_bytes: int) -> None:
    nbytes = stream_bytes(sizes)
    found: list[list[int]] = [[] for _ in sizes]
    for bucket in into_buckets(nbytes, sizes, bucket_bytes):
        for piece in bucket.pieces:
            assert 0 <= piece.place <= bucket.nbytes - piece.nbytes
            found[piece.tensor] += range(piece.start, piece.start + piece.nbytes)
    assert found == [list(range(size)) for size in sizes]
    alone = [bucket.nbytes for bucket in into_buckets(nbytes, [], bucket_bytes)]
    assert alone == [bucket.nbytes for bucket in into_buckets(nbytes, sizes, bucket_bytes)]


def test_the_inside_of_a_large_tensor_is_sent_from_its_own_memory() -> None:
    large, addresses = torch.arange(4096, dtype=torch.uint8), []

    def send(buffer: Tensor) -> Under:
        addresses.append(buffer.data_ptr() - large.data_ptr())
        return Under(lambda: None)

    carry([large], 4096, send, fills=True, device=CPU, bucket_bytes=1024)
    assert addresses == [0, 1024, 2048, 3072]


@pytest.mark.parametrize("tensor", [torch.arange(9.0)[1::8][:1], torch.tensor(3.5)])
def test_one_element_may_have_any_stride(tensor: Tensor) -> None:
    empty = torch.zeros_like(tensor)
    receive(sent([tensor], 512), [empty], 4, 512)
    assert torch.equal(empty, tensor)
