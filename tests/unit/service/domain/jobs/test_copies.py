"""Lost ranks whose parts of the model have copies, and the sizes at which they have none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.contract.values.meshes import mesh_of
from headway.contract.views.jobs import JobProgress
from service.domain.jobs.copies import keeps_every_part, single_copy_sizes
from service.domain.jobs.job import Job
from tests.unit.service.builders import job_of, spec_of


def sized(**parallel: int) -> Job:
    return job_of("a", spec=spec_of("a", elastic={"min": 4, "max": 64}, parallel=parallel))


@pytest.mark.parametrize(
    ("lost", "keeps"), [((1,), True), ((0, 2), True), ((1, 2), False), ((3, 0), False), ((1, 3), True)]
)
def test_neighbours_lost_together_take_a_part(lost: tuple[int, ...], *, keeps: bool) -> None:
    spec = spec_of("a", elastic={"min": 1, "max": 4, "redundancy": "neighbour"})
    left = set(range(4)) - set(lost)
    assert keeps_every_part(job_of("a", spec=spec, sharded=True), "fsdp=4", left, 4) is keeps


@pytest.mark.parametrize(
    ("mesh", "lost", "keeps"),
    [
        ("replicate=2,fsdp=2", (1,), True),
        ("replicate=2,fsdp=2", (0, 1), True),
        ("replicate=2,fsdp=2", (0, 3), True),
        ("replicate=2,fsdp=2", (0, 2), False),
        ("replicate=2,tp=2", (1,), True),
        ("replicate=2,tp=2", (1, 3), False),
        ("replicate=3", (0, 2), True),
        ("fsdp=2,tp=2", (1,), False),
        ("fsdp=4", (), True),
        (None, (0,), False),
    ],
)
def test_a_part_is_lost_with_the_last_of_its_replicas(
    mesh: str | None, lost: tuple[int, ...], *, keeps: bool
) -> None:
    size = 4 if mesh is None else mesh_of(mesh).size
    left = set(range(size)) - set(lost)
    job = job_of("a", sharded=True, progress=JobProgress(mesh=mesh, replicates=True))
    assert keeps_every_part(job, mesh, left, size) is keeps
    alone = replace(job, progress=JobProgress(mesh=mesh))
    assert keeps_every_part(alone, mesh, left, size) is (not lost), "the script does not use the replicas"
    assert keeps_every_part(replace(job, sharded=False), mesh, left, size)


def test_sizes_without_replicas_have_one_copy_of_each_part() -> None:
    assert single_copy_sizes(sized(tp=2, fsdp=4)) == {8}
    assert single_copy_sizes(sized(tp=32)) == {32, 64}, (
        "without measured memory all groups divide the parameters"
    )
    assert single_copy_sizes(job_of("a", spec=spec_of("a"), sharded=True)) == frozenset()
