"""Orders of members: what ranks read, and that an older one never replaces a newer one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.agents import BatchOrder, Member, OrderCommand
from headway.contract.orders import BatchPlan, Order, order_from_json
from headway.contract.run_facts import LossRate
from tests.unit.worker_agent.runs.test_environment import command
from worker_agent.host.folders import RunFolder, StateFolder
from worker_agent.runs import orders, records

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def order(generation: int, batch: BatchOrder | None = None, losses: LossRate | None = None) -> Order:
    members = [
        Member(rank=0, node_id="n", slot=3, born_generation=1, born_rank=2),
        Member(rank=1, node_id="n", slot=0, born_generation=generation, born_rank=1),
    ]
    return orders.order_of(
        OrderCommand(
            command_id="c", job_id="job", generation=generation, store_addr="10.0.0.1", store_port=20_001,
            members=members, lost=True, batch=batch, losses=losses,
        )
    )  # fmt: skip


def delivered(folder: RunFolder) -> int | None:
    """The generation of the order that the ranks of the run see."""
    return order_from_json(folder.order.read_text()).generation if folder.order.exists() else None


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    folder = StateFolder(tmp_path / "state")
    folder.make()
    return folder


def test_what_ranks_read() -> None:
    assert order(4, BatchOrder(global_batch=256, effect=0.5)) == Order(
        generation=4,
        world_size=2,
        store="10.0.0.1:20001",
        members={"1.2": 0, "4.1": 1},
        lost=True,
        batch=BatchPlan(global_batch=256, effect=0.5),
    )
    assert order(4).batch is None


def test_expected_speeds_are_in_the_order_of_the_ranks() -> None:
    slow = Member(rank=1, node_id="n", slot=0, born_generation=1, born_rank=0, device_kind="t4")
    fast = Member(rank=0, node_id="m", slot=0, born_generation=2, born_rank=1, device_kind="a100", speed=4.0)
    assert orders.speeds_of([slow, fast]) == (4.0, 1.0)
    assert orders.speeds_of([slow]) == orders.speeds_of([]) == ()


@given(st.lists(st.integers(1, 9), max_size=8), st.integers(1, 9))
def test_a_run_sees_the_newest_order_since_its_own_time(arriving: list[int], born: int) -> None:
    with TemporaryDirectory() as path:
        state = StateFolder(Path(path))
        state.make()
        folder, job = records.new_run(state, command(generation=born)).folder, state.job("job")
        seen = []
        for generation in arriving:
            orders.store_newest(job.order, order(generation))
            orders.deliver(folder)
            seen.append(delivered(folder) or 0)
        late = records.new_run(state, command(generation=born + 10)).folder
        orders.deliver(late)
        assert seen == sorted(seen), "never an older one after a newer one"
        assert delivered(folder) == max((one for one in arriving if one >= born), default=None)
        assert delivered(late) is None


@given(st.permutations([(4, 0), (4, 5), (4, 9), (5, 1), (5, 3)]), st.integers(1, 5))
def test_a_repeated_order_brings_newer_losses(arriving: list[tuple[int, int]], count: int) -> None:
    """A command may arrive twice, or late: what counts is when the service expected the losses."""
    with TemporaryDirectory() as path:
        state = StateFolder(Path(path))
        state.make()
        folder, job = records.new_run(state, command(generation=1)).folder, state.job("job")
        for generation, minute in arriving[:count]:
            rate = LossRate(per_h=minute / 8, at=BEGIN + timedelta(minutes=minute))
            orders.store_newest(job.order, order(generation, losses=rate))
            orders.deliver(folder)
        newest = max(arriving[:count])
        seen = order_from_json(folder.order.read_text())
        assert (seen.generation, seen.losses_per_h) == (newest[0], newest[1] / 8)
        assert seen.losses_at_s == (BEGIN + timedelta(minutes=newest[1])).timestamp()


def test_a_file_that_a_script_wrote_into_is_replaced(state: StateFolder) -> None:
    folder, job = records.new_run(state, command(generation=1)).folder, state.job("job")
    folder.order.write_text('{"generation": 99')
    orders.store_newest(job.order, order(2))
    orders.deliver(folder)
    assert delivered(folder) == 2
