"""What the ranks of a busy node have said of their training since its last report, in fewer messages that say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from headway.contract.agents import RankEntry, RankMessage
from headway.contract.runtime import Progress, from_fields

_SAME = ("rank", "generation", "global_batch", "local_batch", "accumulation")
"""Steps add up where all of these are the same."""


def merged(entries: Sequence[RankEntry]) -> list[RankEntry]:
    """The entries with messages of progress that follow one another made one: their statistics are sums, and of everything
    else the last one counts. It stands where the last of them stood, under its sequence number.

    Messages that compare ranks stay apart, since it counts how many say the same in a row; so do those that make no sense.
    """
    kept: list[RankEntry] = []
    latest: dict[str, tuple[int, Progress]] = {}
    """By job: where its latest entry is kept, if that can be added to."""
    for entry in entries:
        message = _progress(entry)
        before = latest.get(entry.job_id)
        if message is None:
            latest.pop(entry.job_id, None)
            kept.append(entry)
        elif before is not None and _add_up(kept[before[0]], before[1], entry, message):
            both = _sum(before[1], message)
            said = {**asdict(both), "type": Progress.TYPE, "local_batches": list(both.local_batches)}
            kept[before[0]] = entry.model_copy(update={"message": said})
            latest[entry.job_id] = before[0], both
        else:
            latest[entry.job_id] = len(kept), message
            kept.append(entry)
    return kept


def _progress(entry: RankEntry) -> Progress | None:
    """The message of an entry, if it is one that may be added to others."""
    if not isinstance(entry, RankMessage) or entry.message.get("type") != Progress.TYPE:
        return None
    try:
        message = from_fields(entry.message)
    except ValueError:
        return None  # to be refused by itself, with an event
    return message if isinstance(message, Progress) and not message.rank_sample_s else None


def _add_up(kept: RankEntry, before: Progress, entry: RankEntry, message: Progress) -> bool:
    same_process = (
        isinstance(kept, RankMessage) and isinstance(entry, RankMessage) and kept.rank == entry.rank
    )
    return (
        same_process
        and kept.generation == entry.generation
        and all(getattr(before, name) == getattr(message, name) for name in _SAME)
    )


def _sum(before: Progress, after: Progress) -> Progress:
    return replace(
        after,
        steps=before.steps + after.steps,
        step_s_sum=before.step_s_sum + after.step_s_sum,
        step_s_squares=before.step_s_squares + after.step_s_squares,
        sync_s_sum=before.sync_s_sum + after.sync_s_sum,
        gradient_sqr=before.gradient_sqr if after.gradient_sqr is None else after.gradient_sqr,
        gradient_var=before.gradient_var if after.gradient_var is None else after.gradient_var,
    )
