"""Copies of states in host buffers of one size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.train.checkpoint.host_copy import BUFFER_BYTES, HostCopy, HostTensor

DTYPES = [torch.float64, torch.bfloat16, torch.bool, torch.uint8, torch.complex64, torch.float8_e5m2]


def value(taken: HostTensor) -> torch.Tensor:
    """The tensor that was copied."""
    data = bytearray(b"".join(taken.views()))
    assert len(data) == taken.nbytes
    if not data:
        return torch.empty(taken.shape, dtype=taken.dtype)
    return torch.frombuffer(data, dtype=taken.dtype).reshape(taken.shape)


def addresses(taken: dict[str, HostTensor]) -> list[int]:
    return [piece.data_ptr() for one in taken.values() for piece in one.pieces]


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=5),
    dtype=st.sampled_from(DTYPES),
    buffer_bytes=st.sampled_from([64, 256, 2**14]),
)
def test_tensors_of_any_size_are_copied_over_the_bounds_of_buffers(
    sizes: list[list[int]], dtype: torch.dtype, buffer_bytes: int
) -> None:
    live = {str(number): torch.randn(size).to(dtype) for number, size in enumerate(sizes)}
    taken = HostCopy(buffer_bytes).take(live)
    assert list(taken) == list(live)
    assert all(torch.equal(value(taken[name]), tensor) for name, tensor in live.items())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).view(2, 3).t(),
        torch.arange(10.0)[::5][:1],
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(1).expand(7),
        torch.tensor(3),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j, 3j]).conj().imag,
    ],
)
def test_tensor_whose_elements_lie_otherwise_is_copied_in_their_order(tensor: torch.Tensor) -> None:
    assert torch.equal(value(HostCopy().take({"one": tensor})["one"]), tensor)


def test_copy_of_many_bytes_is_made_by_several_threads() -> None:
    live = {str(number): torch.full((5_000_000,), float(number)) for number in range(3)}
    taken = HostCopy(2**22).take(live)
    assert all(torch.equal(value(taken[name]), tensor) for name, tensor in live.items())


def test_a_copy_does_not_follow_the_original() -> None:
    live = {"weight": torch.zeros(3, requires_grad=True)}
    taken = HostCopy().take(live)
    with torch.no_grad():
        live["weight"].add_(1)
    assert value(taken["weight"]).tolist() == [0, 0, 0]


def test_buffers_hold_a_state_and_less_than_one_buffer_more() -> None:
    host = HostCopy(2**16)
    # Torch would pin 2^18 for the large ones, and 3 * 2^18 in all.
    host.take({str(number): torch.ones(2**15 + 1) for number in range(3)})
    assert host.allocated_bytes == 7 * 2**16
    assert BUFFER_BYTES.bit_count() == 1


def test_the_buffers_of_a_copy_are_used_again() -> None:
    host = HostCopy(256)
    host.reserve({"weight": torch.ones(100)})
    reserved = host.allocated_bytes
    first = addresses(host.take({"weight": torch.ones(100)}))
    second = addresses(host.take({"weight": torch.zeros(100)}))
    assert first == second
    assert host.allocated_bytes == reserved
    grown = addresses(host.take({"weight": torch.zeros(100), "new": torch.ones(100)}))
    assert grown[:2] == first
    assert host.allocated_bytes == 2 * reserved
    host.take({"weight": torch.ones(1)})
    assert host.allocated_bytes == 256
