from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.train.sharding.boxes import Box


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Box, Box]:
    """A box, and one that it holds."""
    sizes = draw(st.lists(st.integers(1, 4), max_size=3))
    part = [draw(st.integers(1, size)) for size in sizes]
    offsets = [draw(st.integers(0, size - inner)) for size, inner in zip(sizes, part, strict=True)]
    return Box((0,) * len(sizes), tuple(sizes)), Box(tuple(offsets), tuple(part))


@given(boxes())
def test_a_run_is_contiguous_in_the_memory_of_its_box(pair: tuple[Box, Box]) -> None:
    outer, inner = pair
    part = torch.empty(outer.sizes)[inner.slices_in(outer)]
    assert inner.is_run_of(outer) == part.is_contiguous()
