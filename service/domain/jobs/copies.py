"""Copies of the parts of a sharded model, with which a job survives a lost rank in place. Pure."""

from __future__ import annotations

from collections.abc import Collection

from headway.contract.spec_parts import Parallel
from headway.contract.values.meshes import mesh_of
from service.domain.jobs.job import Job
from service.domain.jobs.parallelism import mesh_at


def keeps_every_part(job: Job, mesh: str | None, left: Collection[int], size: int) -> bool:
    """Return True if the ranks `left`, of `size` on this mesh, hold every part of the model.

    The lost parts are on the replicas of their ranks, or with `elastic.redundancy` on the next ranks.
    """
    if not job.sharded:
        return True
    if job.spec.elastic.redundant:
        return all(rank in left or (rank + 1) % size in left for rank in range(size))
    if mesh is None or not job.has_copies_on(mesh):
        return len(left) == size
    part = mesh_of(mesh).part
    return {part(rank) for rank in left} == {part(rank) for rank in range(size)}


def single_copy_sizes(job: Job) -> frozenset[int]:
    """Return the sizes at which a lost rank takes the only copy of its part of the model.

    `parallel` in its job file says that the job shards its model, also before it has trained.
    """
    if job.spec.parallel == Parallel() or job.spec.elastic.redundant:
        return frozenset()
    meshes = {size: mesh_at(job, size) for size in job.spec.allowed_sizes()}
    return frozenset(size for size, mesh in meshes.items() if mesh is not None and not mesh.has_copies)
