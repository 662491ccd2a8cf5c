"""fifo, las and srtf: rigid sizes, one job after the other."""

from __future__ import annotations

import numpy as np
import pytest

from service.domain.allocation.knapsack.problem import Row
from service.domain.policies.fifo import Fifo
from service.domain.policies.framework.queueing import requested_columns, serve_in_order
from service.domain.policies.las import Las
from service.domain.policies.srtf import Srtf
from tests.unit.service.domain.policies.rounds import a_round, brute_force, random_round

NOTHING = -1


def chosen(policy, round_) -> list[int]:
    return policy.choose(round_, brute_force).chosen.tolist()


def rigid(sizes, *, capacity, **fields):
    """Jobs that run on 1, 2 or 4 slots of one kind and ask for `sizes`."""
    table = [[10.0, 20.0, 40.0]] * len(sizes)
    return a_round(table, [1, 2, 4], capacity=capacity, requested_slots=sizes, **fields)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("blocking", [True, False])
def test_the_order_is_served_as_by_hand(seed: int, blocking: bool) -> None:
    rng = np.random.default_rng(seed)
    quota = Row(
        name="quota",
        capacity=2.0,
        demand=np.tile([1.0, 2.0, 3.0], 2),
        jobs=np.array([True, False, True, False, True]),
    )
    round_ = random_round(
        seed,
        jobs=5,
        kinds=2,
        sizes=3,
        capacity=4,
        rows=(quota,),
        requested_slots=rng.integers(1, 5, 5),
    )
    order = rng.permutation(5)
    marked = requested_columns(round_)
    by_hand, left = np.full(5, NOTHING), [row.capacity for row in round_.rows]
    for job in order:
        wishes = sorted(
            np.flatnonzero(marked[job]),
            key=lambda column: (column != round_.current[job], -round_.goodput[job, column]),
        )

        def takes(row, column, job=job) -> float:
            return row.demand[column] if row.jobs is None or row.jobs[job] else 0.0

        fitting = [
            column
            for column in wishes
            if all(takes(row, column) <= has for row, has in zip(round_.rows, left, strict=True))
        ]
        if fitting:
            by_hand[job] = fitting[0]
            left = [has - takes(row, fitting[0]) for row, has in zip(round_.rows, left, strict=True)]
        elif blocking and any(
            all(takes(row, column) <= row.capacity for row in round_.rows)
            and takes(quota, column) <= left[-1]
            for column in wishes
        ):
            break
    assert serve_in_order(round_, order, blocking=blocking).tolist() == by_hand.tolist()


def test_the_requested_size_is_the_largest_up_to_it_or_the_smallest_beyond() -> None:
    round_ = a_round(
        [[1.0, 2.0, 0.0], [0.0, 2.0, 4.0], [0.0] * 3], [1, 2, 4], capacity=8, requested_slots=[3, 1, 1]
    )
    assert requested_columns(round_).tolist() == [[False, True, False], [False, True, False], [False] * 3]


def test_fifo_lets_nobody_overtake() -> None:
    assert chosen(Fifo(), rigid([2, 4, 1], capacity=4)) == [1, NOTHING, NOTHING]


def test_fifo_takes_nothing_from_running_jobs() -> None:
    assert chosen(Fifo(), rigid([4, 2], capacity=4, current=[NOTHING, 1])) == [NOTHING, 1]


def test_fifo_does_not_wait_for_what_can_never_run() -> None:
    assert chosen(Fifo(), rigid([4, 2], capacity=2)) == [NOTHING, 1]


def test_fifo_does_not_wait_for_a_quota_of_one_project() -> None:
    quota = Row(
        name="quota", capacity=2.0, demand=np.array([1.0, 2.0, 4.0]), jobs=np.array([True, True, False])
    )
    assert chosen(Fifo(), rigid([2, 1, 1], capacity=4, rows=(quota,))) == [1, NOTHING, 0]


def test_las_prefers_who_had_least_and_within_a_queue_who_came_first() -> None:
    round_ = rigid([2, 2, 2], capacity=2, served_slot_s=[8000.0, 3000.0, 10.0], current=[1, NOTHING, NOTHING])
    assert chosen(Las(), round_) == [NOTHING, 1, NOTHING]


def test_las_promotes_who_waited_long_for_what_it_ran() -> None:
    served = {"served_slot_s": [9000.0, 9000.0], "served_s": [[4500.0], [4500.0]]}
    assert chosen(Las(), rigid([2, 2], capacity=2, **served)) == [1, NOTHING]
    assert chosen(Las(), rigid([2, 2], capacity=2, waited_s=[0.0, 36_001.0], **served)) == [NOTHING, 1]


def test_srtf_takes_slots_from_a_longer_job() -> None:
    assert chosen(Srtf(), rigid([2, 2], capacity=2, remaining=[2e4, 1e4], current=[1, NOTHING])) == [
        NOTHING,
        1,
    ]


def test_srtf_takes_a_job_of_unknown_length_to_be_half_way() -> None:
    """20 samples/s: a job with 100 s to go comes before one that has run for 200 s and after one that ran for 50 s."""
    for ran_s, expected in [(200.0, [1, NOTHING]), (50.0, [NOTHING, 1])]:
        round_ = rigid([2, 2], capacity=2, remaining=[2000.0, np.nan], served_s=[[0.0], [ran_s]])
        assert chosen(Srtf(), round_) == expected


def test_what_does_not_fit_is_overtaken_without_a_block() -> None:
    assert chosen(Srtf(), rigid([4, 2, 2], capacity=3, remaining=[1.0, 3.0, 2.0])) == [NOTHING, NOTHING, 1]


def test_ten_thousand_jobs_on_a_full_cluster_are_served_in_order() -> None:
    round_ = rigid(np.full(10_000, 2), capacity=64)
    assert (serve_in_order(round_, np.arange(10_000), blocking=False) != NOTHING).nonzero()[0].tolist() == [
        *range(32)
    ]


@pytest.mark.parametrize(
    ("current", "capacity", "expected"),
    [
        ([-1, -1, -1], 3, [0, 0, 0]),
        ([-1, -1, -1], 2, [0, 0, NOTHING]),
        ([-1, -1, 0], 2, [0, NOTHING, 0]),
        ([-1, 0, 0], 2, [NOTHING, 0, 0]),
        ([0, 0, 0], 1, [0, NOTHING, NOTHING]),  # slots were lost: the earlier submission keeps its slot
    ],
)
def test_fifo_serves_running_jobs_then_waiting_jobs_by_submission(
    current: list[int], capacity: int, expected: list[int]
) -> None:
    assert chosen(Fifo(), rigid([1, 1, 1], capacity=capacity, current=current)) == expected


@pytest.mark.parametrize(
    ("served_slot_s", "expected"),
    [
        ([0.0, 3249.0], [1, NOTHING]),  # one queue: by submission
        ([3250.0, 3249.0], [NOTHING, 1]),  # the limit belongs to the next queue
        ([3250.0, 7199.0], [1, NOTHING]),
        ([7200.0, 7199.0], [NOTHING, 1]),
        ([1e9, 7200.0], [1, NOTHING]),
        ([np.nan, 0.0], [1, NOTHING]),
    ],
)
def test_las_has_three_queues_by_slot_seconds(served_slot_s: list[float], expected: list[int]) -> None:
    assert chosen(Las(), rigid([2, 2], capacity=2, served_slot_s=served_slot_s)) == expected


@pytest.mark.parametrize(
    ("waited_s", "ran_s", "expected"),
    [(800.0, 100.0, [1, NOTHING]), (801.0, 100.0, [NOTHING, 1]), (1.0, 0.0, [NOTHING, 1])],
)
def test_las_promotes_a_job_that_waited_eight_times_as_long_as_it_ran(
    waited_s: float, ran_s: float, expected: list[int]
) -> None:
    """The first job is in the second queue, the other in the third one unless it is promoted."""
    round_ = rigid(
        [2, 2],
        capacity=2,
        served_slot_s=[4000.0, 8000.0],
        served_s=[[2000.0], [ran_s]],
        waited_s=[0.0, waited_s],
    )
    assert chosen(Las(), round_) == expected


def test_las_sorts_the_limits_of_its_queues() -> None:
    round_ = rigid([2, 2], capacity=2, served_slot_s=[50.0, 5.0])
    assert chosen(Las(queue_limits_slot_s=(100.0, 10.0)), round_) == [NOTHING, 1]
    assert chosen(Las(queue_limits_slot_s=(100.0,)), round_) == [1, NOTHING]


@pytest.mark.parametrize(
    ("remaining", "expected"),
    [
        ([100.0, 200.0], [1, NOTHING]),
        ([200.0, 100.0], [NOTHING, 1]),
        ([100.0, 100.0], [1, NOTHING]),  # equal: by submission
        ([0.0, 100.0], [1, NOTHING]),
        ([-1.0, 100.0], [1, NOTHING]),  # unknown, and never served: as far from its end as from its start
    ],
)
def test_srtf_prefers_the_shorter_remaining_time(remaining: list[float], expected: list[int]) -> None:
    assert chosen(Srtf(), rigid([2, 2], capacity=2, remaining=remaining)) == expected


def test_srtf_compares_times_on_the_best_kind_of_each_job() -> None:
    """The first job needs 10 s on the second kind, the other one 20 s on the first kind."""
    round_ = a_round(
        [[1.0, 10.0], [10.0, 1.0]], [1, 1], kind=[0, 1], capacity=[0, 1], remaining=[100.0, 200.0]
    )
    assert chosen(Srtf(), round_) == [1, NOTHING]
    later = a_round(
        [[1.0, 10.0], [10.0, 1.0]], [1, 1], kind=[0, 1], capacity=[0, 1], remaining=[201.0, 200.0]
    )
    assert chosen(Srtf(), later) == [NOTHING, 1]


@pytest.mark.parametrize("policy", [Las(), Srtf()], ids=lambda one: one.name)
def test_firm_jobs_keep_their_slots_where_the_order_would_take_them(policy) -> None:
    fields = {"served_slot_s": [1e6, 0.0], "remaining": [1e6, 1.0], "current": [1, NOTHING]}
    assert chosen(policy, rigid([2, 2], capacity=2, **fields)) == [NOTHING, 1]
    firm = rigid([2, 2], capacity=2, firm=[True, False], seats=[NOTHING, NOTHING], **fields)
    assert chosen(policy, firm) == [1, NOTHING]
