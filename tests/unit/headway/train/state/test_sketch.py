"""Sketches of tensors: equal ones, those that differ by rounding, and those that differ."""

from __future__ import annotations

import math

import pytest
import torch

from headway.train.state.sketch import Sketch, sketch, within

SIZES = [1, 7, 2**14, 2**14 + 1, 2**22 + 5]


def _sketch(tensor: torch.Tensor) -> Sketch:
    square, *products = sketch(tensor).tolist()
    return Sketch(square, tuple(products), within(torch.float32))


def _values(size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size))


@pytest.mark.parametrize("size", SIZES)
def test_tensors_that_differ_by_rounding_are_near(size: int) -> None:
    values = _values(size)
    noise = 1 + 1e-5 * torch.randn(size, generator=torch.Generator().manual_seed(1))
    assert _sketch(values).is_near(_sketch(values * noise))
    assert _sketch(values).is_near(_sketch(values * (1 + 1e-3)))


@pytest.mark.parametrize("size", SIZES)
def test_tensors_that_differ_in_all_elements_are_not_near(size: int) -> None:
    values = _values(size)
    for other in (values * 1.1, values + 0.2 * values.norm() / math.sqrt(size), values.flip(0) * -1.0):
        assert not _sketch(values).is_near(_sketch(other))


def test_tensors_that_differ_in_one_element_are_not_near() -> None:
    values = _values(1000)
    other = values.clone()
    other[400] += 0.05 * values.norm()
    assert not _sketch(values).is_near(_sketch(other))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_value_that_is_not_finite_on_one_rank_alone_is_a_difference(value: float) -> None:
    values = _values(9)
    other = values.clone()
    other[3] = value
    assert not _sketch(values).is_near(_sketch(other))
    assert _sketch(other).is_near(_sketch(other))


def test_zeros_and_empty_tensors_are_near_themselves() -> None:
    for one in (torch.zeros(3), torch.zeros(0), torch.zeros(0, 4)):
        assert _sketch(one).is_near(_sketch(one))
    assert not _sketch(torch.zeros(3)).is_near(_sketch(torch.ones(3)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_squared_norm_is_that_of_the_tensor(dtype: torch.dtype) -> None:
    values = _values(2**14 + 3).to(dtype).view(-1, 1).expand(-1, 2)
    assert _sketch(values).square == pytest.approx(values.to(torch.complex128).abs().square().sum().item())
