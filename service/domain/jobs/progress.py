"""The progress of a job after messages of its ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from headway.contract.manifest import Name
from headway.contract.run_facts import MemoryUse, ProgressSource
from headway.contract.runtime import (
    BatchChanged,
    Checkpointed,
    Completed,
    EpochClosed,
    FirstStep,
    Hello,
    Message,
    Metrics,
    Progress,
    Restored,
    Stopped,
    Switched,
)
from headway.contract.views.jobs import JobProgress
from headway.contract.views.progress import UNITS
from service.domain.jobs.resumption import resumption

MAX_METRIC_NAMES = 200
"""Maximum number of metric names of a job, since the latest value of each is stored in the job's row."""


def after_message(progress: JobProgress, message: Message) -> JobProgress:
    """Return the progress after a message. Samples decrease only when a checkpoint was restored."""
    update: dict[str, Any]
    match message:
        case Progress():
            update = _reported(progress, message)
        case Hello():
            update = {"source": ProgressSource.LIBRARY}
        case FirstStep() if message.plain:
            return after_first_report(progress, message)
        case BatchChanged() if message.rank == 0:
            update = {"global_batch": message.global_batch}
        case Metrics():
            update = {"metrics": {**progress.metrics, **message.values}}
        case Checkpointed():
            every_s = message.every_s or progress.checkpoint_every_s
            update = {"checkpoint_samples": message.samples, "checkpoint_every_s": every_s}
            update["checkpoint_name"] = _name_in(message.uri)
            update["checkpoint_took_s"] = message.total_s
        case Restored():
            lost = max(0, progress.samples - message.samples)
            update = {"samples": message.samples, **_with_lost(progress, lost)}
            update |= _from(progress, message.samples if message.progress is None else message.progress)
        case FirstStep() if message.rank == 0:
            return _after_first_step(progress, message)
        case EpochClosed() if message.epoch + 1 > progress.epochs_audited:
            # Reports about earlier epochs may be lost with their node. The training state has the exact
            # count.
            exact = min(message.exact_so_far, message.epoch + 1)
            update = {"epochs_audited": message.epoch + 1, "epochs_exact": exact}
        case Stopped() | Completed():
            update = {"samples": max(progress.samples, message.samples)}
        case Switched() if message.rank == 0:
            update = {
                "samples": max(progress.samples, message.samples),
                "lost_steps": progress.lost_steps + message.lost_steps,
                "pause_s": message.pause_s,
            }
        case _:
            update = {}
    return progress.model_copy(update=update)


def _name_in(uri: str) -> str | None:
    """Return the name of the checkpoint at a URI; None if a script chose another layout."""
    name = Name.in_uri(uri)
    return None if name is None else str(name)


def _reported(progress: JobProgress, message: Progress) -> dict[str, Any]:
    samples = message.steps * (message.global_batch or 1)
    samples_per_s = samples / message.step_s_sum if message.step_s_sum > 0 else math.inf
    unnumbered = progress.source is ProgressSource.SCRIPT or message.train_steps is not None
    return {
        "epoch": None if unnumbered else message.epoch,
        "samples": message.samples,
        "total_samples": message.total_samples,
        "unit": message.unit if message.unit in UNITS else "samples" if message.global_batch else "steps",
        "samples_per_s": samples_per_s if 0 < samples_per_s < math.inf else progress.samples_per_s,
        "global_batch": message.global_batch or None,
        "max_global_batch": message.max_global_batch,
        "lr_rule": message.lr_rule,
        "progress": message.progress,
        "total_progress": message.total_progress,
        "dataset_samples": message.dataset_samples,
        "train_step": message.train_step,
        "train_steps": message.train_steps,
        "draws": message.draws,
        "shards": message.shards,
        "repeated_samples": message.repeated_samples,
        "repeated_shards": message.repeated_shards,
        "efficiency": _efficiency(progress, message),
        "memory": _memory(progress, message),
        "standstill": None if message.steps else progress.standstill,
    }


def _memory(progress: JobProgress, message: Progress) -> MemoryUse | None:
    """Return the memory that ranks needed: on one mesh, the most of all reports."""
    if len(message.memory) != 4 or min(message.memory) < 1:
        return progress.memory
    peak, shard, device, fsdp = message.memory
    before = progress.memory
    use = MemoryUse(
        peak_bytes=peak,
        shard_bytes=min(shard, peak),
        device_bytes=device,
        fsdp=fsdp,
        samples=max(1, message.local_batch),
    )
    if before is not None and (before.fsdp, before.samples) == (use.fsdp, use.samples):
        return before if before.peak_bytes >= peak else use
    return use


def _after_first_step(progress: JobProgress, message: FirstStep) -> JobProgress:
    update: dict[str, Any] = {
        "begun_generation": max(progress.begun_generation, message.generation),
        "replicates": message.replicates,
    }
    if message.samples < progress.samples:
        # A rank that restores a checkpoint reports it before the first step: there was none.
        update |= {"samples": message.samples, "checkpoint_samples": None, "checkpoint_name": None}
        update |= _from(progress, message.samples)
        update |= _with_lost(progress, progress.samples)
    return progress.model_copy(update=update)


def after_first_report(progress: JobProgress, message: FirstStep) -> JobProgress:
    """Return the progress after the first step that a script without the library reports in a generation.

    The position of that step shows whether the script resumes. Reports of the library take precedence, and a
    repeated message changes nothing.
    """
    if progress.source is ProgressSource.LIBRARY or message.generation <= progress.begun_generation:
        return progress
    update: dict[str, Any] = {
        "source": ProgressSource.SCRIPT,
        "begun_generation": message.generation,
        "samples": message.samples,
    }
    if progress.first_samples is None:
        update["first_samples"] = message.samples
    else:
        lost = max(0, progress.samples - message.samples)
        evidence = resumption(progress, began_at=message.samples, generation=message.generation)
        update |= _with_lost(progress, lost)
        update["resumption"] = evidence or progress.resumption
    return progress.model_copy(update=update)


def within_names(progress: JobProgress, message: Metrics) -> Metrics:
    """Return the message without values of new names beyond `MAX_METRIC_NAMES` of the job."""
    room = MAX_METRIC_NAMES - len(progress.metrics)
    new = [name for name in message.values if name not in progress.metrics]
    if len(new) <= room:
        return message
    left_out = set(new[max(0, room) :])
    values = {name: value for name, value in message.values.items() if name not in left_out}
    return replace(message, values=values)


def _efficiency(progress: JobProgress, message: Progress) -> float | None:
    """Return the progress per sample since the last report, and the last value where no sample was read since."""
    if message.progress is None:
        return None
    samples = message.samples - progress.samples
    before = progress.samples if progress.progress is None else progress.progress
    made = message.progress - before
    return made / samples if samples > 0 and made > 0.0 else progress.efficiency


def _from(progress: JobProgress, made: float) -> dict[str, float]:
    """Return the change of a job that continues at the progress `made`; none where it does not report progress."""
    return {} if progress.progress is None else {"progress": float(made)}


def _with_lost(progress: JobProgress, samples: int) -> dict[str, int]:
    """Return the progress's counters of repeated samples and steps, increased by this number of samples."""
    steps = -(-samples // progress.global_batch) if progress.global_batch else 0
    return {"lost_samples": progress.lost_samples + samples, "lost_steps": progress.lost_steps + steps}
