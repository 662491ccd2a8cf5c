"""The mesh of each size, and the sizes that memory excludes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.run_facts import MemoryUse
from headway.contract.values.meshes import MeshShape
from headway.contract.views.jobs import JobProgress
from service.domain.jobs.job import Job
from service.domain.jobs.parallelism import fits_survivors, lacks_memory, mesh_at, needed_bytes
from tests.unit.service.builders import job_of, spec_of

GB = 10**9


def sharded_job(
    memory: MemoryUse | None = None, batch: dict[str, Any] | None = None, **parallel: object
) -> Job:
    spec = spec_of("a", elastic={"min": 4, "max": 64}, parallel=parallel, batch=batch or {})
    return job_of("a", spec=spec, sharded=True, progress=JobProgress(memory=memory, global_batch=64))


def used(peak: float, shard: float, fsdp: int = 4, samples: int = 16) -> MemoryUse:
    return MemoryUse(
        peak_bytes=int(peak * GB),
        shard_bytes=int(shard * GB),
        device_bytes=80 * GB,
        fsdp=fsdp,
        samples=samples,
    )


def test_only_jobs_that_shard_their_model_have_a_mesh() -> None:
    assert mesh_at(job_of("a", spec=spec_of("a")), 4) is None
    assert mesh_at(job_of("a", spec=spec_of("a"), sharded=True), 4) == MeshShape(fsdp=4)


def test_all_groups_divide_the_parameters_until_memory_is_measured() -> None:
    assert mesh_at(sharded_job(tp=2), 8) == MeshShape(fsdp=4, tp=2)
    assert not lacks_memory(sharded_job(tp=2), 4)


@pytest.mark.parametrize(("peak", "fits"), [(30, True), (50, False)])
def test_survivors_without_tensor_parallelism_need_the_memory_of_a_group(peak: float, *, fits: bool) -> None:
    """After a loss, 7 of the 8 ranks of 4 tensor-parallel groups remain: each holds a seventh, and computes for two."""
    job = sharded_job(used(peak, 10, fsdp=2), tp=2, fsdp=2)
    needed = needed_bytes(job, used(peak, 10, fsdp=2), 7, 7)
    assert fits_survivors(job, 7) is fits is (2 * needed <= 0.95 * 80 * GB)
    assert fits_survivors(job_of("a", spec=spec_of("a")), 7)


def test_a_fixed_division_leaves_the_rest_to_replicas() -> None:
    assert mesh_at(sharded_job(tp=2, fsdp=2), 12) == MeshShape(replicate=3, fsdp=2, tp=2)


def test_stages_and_tensor_parallel_groups_are_fixed() -> None:
    assert mesh_at(sharded_job(pp=2), 8) == MeshShape(pp=2, fsdp=4)
    assert mesh_at(sharded_job(pp=2, tp=2, fsdp=2), 16) == MeshShape(pp=2, replicate=2, fsdp=2, tp=2)
    assert mesh_at(sharded_job(pp=4), 6) == MeshShape(fsdp=6)


def test_survivors_of_a_loss_without_a_mesh_divide_the_parameters() -> None:
    assert mesh_at(sharded_job(tp=2), 5) == MeshShape(fsdp=5)


@pytest.mark.parametrize(
    ("peak", "shard", "fsdp"),
    [
        (20, 10, 1),  # the whole model needs 40 GB, and 10 more
        (40, 20, 2),  # 80 would not fit, 40 do
        (60, 30, 4),  # half would need 60, and 30 more
        (77, 40, 8),  # 20 remain, beside 37
    ],
)
def test_as_few_groups_divide_the_parameters_as_memory_allows(peak: float, shard: float, fsdp: int) -> None:
    job = sharded_job(used(peak, shard), batch={"max_local": 16})
    assert mesh_at(job, 8) == MeshShape(replicate=8 // fsdp, fsdp=fsdp)


def test_a_size_that_does_not_fit_is_excluded() -> None:
    job = sharded_job(used(72, 60), batch={"max_local": 16})
    assert [size for size in (2, 3, 4, 8) if lacks_memory(job, size)] == [2, 3]
    fixed = sharded_job(used(72, 60), batch={"max_local": 16}, fsdp=2)
    assert lacks_memory(fixed, 8), "its job file divides the parameters by 2 at every size"


def test_fewer_groups_take_more_samples_at_once() -> None:
    job = sharded_job(used(50, 10))
    assert needed_bytes(job, used(50, 10), groups=4, fsdp=4) == 50 * GB
    assert needed_bytes(job, used(50, 10), groups=2, fsdp=2) == (2 * 40 + 20) * GB
    assert needed_bytes(job, used(50, 10), groups=8, fsdp=8) == (40 + 5) * GB
    assert lacks_memory(job, 2)


@given(st.integers(1, 64), st.floats(1, 100), st.floats(0, 1), st.integers(1, 4))
def test_every_mesh_has_the_size_and_fits_where_one_does(
    groups: int, peak: float, share: float, tp: int
) -> None:
    memory = used(peak, peak * share)
    job = sharded_job(memory, pp=2, tp=tp, batch={"max_local": 16})
    size = groups * 2 * tp
    mesh = mesh_at(job, size)
    assert mesh is not None
    assert (mesh.size, mesh.pp, mesh.tp) == (size, 2, tp)
    fits = needed_bytes(job, memory, groups, mesh.fsdp) <= 0.95 * memory.device_bytes
    assert fits is not lacks_memory(job, size)
