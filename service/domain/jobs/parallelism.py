"""Mesh of a sharded job's ranks at each size, by its job file and the memory that its ranks measured. Pure.

With `fsdp: auto` the parameters are divided over the fewest pipelines that fit (groups of ranks with the same samples). Of n
groups that hold P bytes of parameters in n / f replicas, a rank sends and receives about 3 P (1 - 1/f) bytes for the gathers and the reduction within its replica,
and 2 P / f (1 - f/n) for the sum over the replicas: P (3 - 1/f - 2/n), which grows with f.
"""

from __future__ import annotations

from headway.contract.run_facts import MemoryUse
from headway.contract.spec_parts import Parallel
from headway.contract.values.meshes import MeshShape
from service.domain.jobs.job import Job

_USABLE = 0.95
"""Share of a device's memory that ranks may fill, because fragments of free memory are lost."""


def mesh_at(job: Job, size: int) -> MeshShape | None:
    """Return the mesh of a job that shards its model, or has `parallel`, on this number of slots; None for other jobs.

    Where no mesh is known to fit, all groups divide the parameters. At a number of slots that no mesh has, as after a loss,
    all ranks do.
    """
    parallel = job.spec.parallel
    if not job.sharded and parallel == Parallel():
        return None
    groups = size // parallel.pipeline
    if size % parallel.unit:
        return MeshShape(fsdp=size)
    fsdp = parallel.fsdp if parallel.fsdp != "auto" else _least_fsdp(job, groups) or groups
    return MeshShape(pp=parallel.pp, replicate=groups // fsdp, fsdp=fsdp, tp=parallel.tp)


def mesh_text_at(job: Job, size: int) -> str | None:
    """Return the mesh of `mesh_at` as text."""
    mesh = mesh_at(job, size)
    return None if mesh is None else str(mesh)


def lacks_memory(job: Job, size: int) -> bool:
    """Return True if the job does not fit this number of slots on any mesh, by what its ranks measured."""
    parallel, memory = job.spec.parallel, job.progress.memory
    if memory is None or size % parallel.unit:
        return False
    groups = size // parallel.pipeline
    fsdp = groups if parallel.fsdp == "auto" else parallel.fsdp
    return needed_bytes(job, memory, groups, fsdp) > _USABLE * memory.device_bytes


def fits_survivors(job: Job, size: int) -> bool:
    """Return True if the job fits this number of slots after a loss, by what its ranks measured.

    On a mesh without tensor parallelism a rank needs what a group of ranks needed together.
    """
    memory, mesh = job.progress.memory, mesh_at(job, size)
    if memory is None or mesh is None:
        return True
    group = job.spec.parallel.tp / mesh.tp
    return group * needed_bytes(job, memory, mesh.data, mesh.fsdp) <= _USABLE * memory.device_bytes


def needed_bytes(job: Job, memory: MemoryUse, groups: int, fsdp: int) -> float:
    """Return the memory that a rank needs where `groups` divide the samples and `fsdp` of them the parameters.

    Its part of the model is inversely proportional to `fsdp`. The rest grows with the samples that it takes at once, and
    counts as constant where these are fewer.
    """
    batch, limit = job.progress.global_batch, job.spec.batch.max_local
    samples = -(-batch // groups) if batch else memory.samples
    samples = min(samples, limit or samples)
    rest = (memory.peak_bytes - memory.shard_bytes) * max(1.0, samples / memory.samples)
    return rest + memory.shard_bytes * memory.fsdp / fsdp


def _least_fsdp(job: Job, groups: int) -> int | None:
    """Return the fewest groups that can divide the parameters; None if nothing was measured, or all are too few."""
    memory = job.progress.memory
    if memory is None:
        return None
    usable = _USABLE * memory.device_bytes
    divisors = (fsdp for fsdp in range(1, groups + 1) if groups % fsdp == 0)
    return next((fsdp for fsdp in divisors if needed_bytes(job, memory, groups, fsdp) <= usable), None)
