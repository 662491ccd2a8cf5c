"""The samples of a step do not depend on the number of ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.integrations.steps import StepBatches, divide_batch


def steps(
    samples: int, global_batch: int, world_size: int, most_local: int | None, epoch: int
) -> list[list[int]]:
    """The samples of each step of an epoch, of all ranks together, sorted."""
    local, passes = divide_batch(global_batch, world_size, most_local)
    ranks = [
        StepBatches(samples, local=local, passes=passes, rank=rank, world_size=world_size, seed=3)
        for rank in range(world_size)
    ]
    for one in ranks:
        one.epoch = epoch
    taken = [list(one) for one in ranks]
    assert {len(mine) for mine in taken} == {len(ranks[0])}
    return [
        sorted(
            index
            for mine in taken
            for one_pass in mine[step * passes : (step + 1) * passes]
            for index in one_pass
        )
        for step in range(ranks[0].steps)
    ]


@given(
    samples=st.integers(12, 100),
    world_size=st.sampled_from([1, 2, 3, 4, 6, 12]),
    most_local=st.none() | st.integers(1, 12),
    epoch=st.integers(0, 3),
)
def test_a_step_takes_the_same_samples_at_any_size(
    samples: int, world_size: int, most_local: int | None, epoch: int
) -> None:
    alone = steps(samples, 12, 1, None, epoch)
    assert steps(samples, 12, world_size, most_local, epoch) == alone
    taken = [index for step in alone for index in step]
    assert len(set(taken)) == len(taken) == samples // 12 * 12


def test_epochs_leave_out_other_samples() -> None:
    left_out = [
        set(range(15)) - {index for step in steps(15, 4, 2, None, epoch) for index in step}
        for epoch in (0, 1)
    ]
    assert [len(some) for some in left_out] == [3, 3]
    assert left_out[0] != left_out[1]


@pytest.mark.parametrize(
    ("global_batch", "world_size", "most_local", "expected"),
    [
        (64, 1, None, (64, 1)),
        (64, 4, 10, (8, 2)),
        (64, 4, 1, (1, 16)),
        (15, 3, 4, (1, 5)),
        (6, 2, 100, (3, 1)),
    ],
)
def test_a_rank_s_part(
    global_batch: int, world_size: int, most_local: int | None, expected: tuple[int, int]
) -> None:
    assert divide_batch(global_batch, world_size, most_local) == expected


def test_a_size_that_does_not_divide_the_batch_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"divided equally over 5 ranks.*sizes: \[1, 2, 3, 4, 6, 12\]"):
        divide_batch(12, 5)
