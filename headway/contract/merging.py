"""Merging of consecutive progress entries into one equivalent entry.

An agent merges what it has not sent yet, and the service what a report still contains, so fewer entries are stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from headway.contract.agents import RankEntry, RankMessage
from headway.contract.rank_lines import from_fields
from headway.contract.runtime import Metrics, Progress

_OF_TRAINING = frozenset({Progress.TYPE, Metrics.TYPE})
_SAME = ("rank", "generation", "global_batch", "local_batch", "accumulation")
"""Fields that must be equal for two messages to be merged."""


@dataclass(frozen=True, slots=True)
class ReportedEntry:
    """An entry of a report.

    `training` is its progress or metrics message; None for other or invalid entries.
    """

    entry: RankEntry
    training: Progress | Metrics | None


def parsed(entries: Iterable[RankEntry]) -> list[ReportedEntry]:
    """Return the entries, each with its parsed training message."""
    return [ReportedEntry(entry, _training(entry)) for entry in entries]


def merged(entries: Iterable[ReportedEntry]) -> list[ReportedEntry]:
    """Merge each job's consecutive progress entries of one process. Entries of one job keep their order.

    A merged entry has the sequence number of the last one. Statistics are summed; for everything else the last message
    counts.
    """
    kept: list[ReportedEntry] = []
    latest: dict[str, int] = {}
    """Index of each job's last entry in `kept`."""
    for one in entries:
        before = latest.get(one.entry.job_id)
        both = None if before is None else _merge_pair(kept[before], one)
        if before is not None and both is not None:
            kept[before] = both
        else:
            latest[one.entry.job_id] = len(kept)
            kept.append(one)
    return kept


def _training(entry: RankEntry) -> Progress | Metrics | None:
    if not isinstance(entry, RankMessage) or str(entry.message.get("type")) not in _OF_TRAINING:
        return None
    try:
        message = from_fields(entry.message)
    except ValueError:
        return None  # refused later by itself, with an event
    return message if isinstance(message, Progress | Metrics) else None


def _merge_pair(before: ReportedEntry, after: ReportedEntry) -> ReportedEntry | None:
    """Return both entries merged, or None if they are not progress of one process in one configuration."""
    one, other = before.entry, after.entry
    if not isinstance(one, RankMessage) or not isinstance(other, RankMessage):
        return None
    if (one.rank, one.generation) != (other.rank, other.generation):
        return None
    progress = _sum(before.training, after.training)
    if progress is None:
        return None
    message = {"type": progress.TYPE, **asdict(progress)}
    return ReportedEntry(other.model_copy(update={"message": message}), progress)


def _sum(before: Progress | Metrics | None, after: Progress | Metrics | None) -> Progress | None:
    """Add the statistics of two progress messages, and take everything else from the later one.

    Return None if the messages differ in a field of `_SAME`, or compare ranks: the service counts consecutive messages that
    name the same slow rank.
    """
    if not isinstance(before, Progress) or not isinstance(after, Progress):
        return None
    if before.rank_sample_s or after.rank_sample_s or before.straggler_times or after.straggler_times:
        return None
    if any(getattr(before, name) != getattr(after, name) for name in _SAME):
        return None
    return replace(
        after,
        steps=before.steps + after.steps,
        step_s_sum=before.step_s_sum + after.step_s_sum,
        step_s_squares=before.step_s_squares + after.step_s_squares,
        sync_s_sum=before.sync_s_sum + after.sync_s_sum,
        sync_times=max(before.sync_times, after.sync_times),
        gradient_sqr=before.gradient_sqr if after.gradient_sqr is None else after.gradient_sqr,
        gradient_var=before.gradient_var if after.gradient_var is None else after.gradient_var,
    )
