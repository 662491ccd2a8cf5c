"""The mesh of a job with `parallel` in its commands, and the slots that a sharded job leaves."""

from __future__ import annotations

from headway.contract.runtime import ENV_MESH
from headway.contract.views.jobs import Reason
from service.domain.jobs.job import Allocation
from service.domain.life.changes import ChangeInPlace, prepare
from tests.unit.service.domain.life.scenes import (
    FOUR,
    TWO,
    alter,
    job_of,
    life_of,
    ordered,
    orders,
    prepared,
    run_at,
    runs,
    starting,
    training,
)

TENSOR_PARALLEL = {"parallel": {"tp": 2}}


def shrunk(target: Allocation, begin: Allocation, reason: Reason, **fields: object) -> Allocation:
    cluster = training(begin, **fields)
    alter(cluster, sharded=True)
    change = ChangeInPlace(target=target, reason=reason, message="less", round_id="r1")
    life = prepare(life_of(cluster), change)
    assert life is not None
    assert life.job.switch is not None
    return life.generations[life.job.switch.generation].slots


def test_a_start_has_the_mesh_of_its_size() -> None:
    cluster = starting(TWO, **TENSOR_PARALLEL)
    assert run_at(cluster, "n0").env[ENV_MESH] == "replicate=1,fsdp=1,tp=2"
    assert job_of(cluster).progress.mesh == "replicate=1,fsdp=1,tp=2"
    assert ENV_MESH not in run_at(starting(TWO), "n0").env


def test_newcomers_and_members_get_the_mesh_of_the_change() -> None:
    cluster = prepared(FOUR, TWO, **TENSOR_PARALLEL)
    assert run_at(cluster, "n1").env[ENV_MESH] == "replicate=1,fsdp=2,tp=2"
    assert job_of(cluster).progress.mesh == "replicate=1,fsdp=1,tp=2", "until the ranks have switched"
    done = ordered(FOUR, TWO, **TENSOR_PARALLEL)
    done.settle()
    assert job_of(done).progress.mesh == "replicate=1,fsdp=2,tp=2"


def test_an_order_has_the_mesh_of_its_members() -> None:
    cluster = training(FOUR, **TENSOR_PARALLEL)
    change = ChangeInPlace(target=TWO, reason=Reason.USER_REQUEST, message="less", round_id="r1")
    life = prepare(life_of(cluster), change)
    assert life is not None
    assert {one.mesh for one in orders(life).values()} == {"replicate=1,fsdp=1,tp=2"}
    assert not runs(life)


def test_those_ranks_of_a_node_leave_whose_shards_move_least() -> None:
    begin = {"n0": (0, 1), "n1": (0, 1)}
    target: Allocation = {"n0": (0,), "n1": (1,)}
    assert shrunk(target, begin, Reason.BETTER_ALLOCATION) == {"n0": (0,), "n1": (0,)}
    assert shrunk(target, begin, Reason.BAD_DEVICE) == target, (
        "the slots that stay are chosen for their devices"
    )
