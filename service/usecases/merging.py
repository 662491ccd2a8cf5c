"""What the ranks of a busy node have said of their training since its last report, in fewer messages that say the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headway.contract.agents import RankEntry, RankMessage
from headway.contract.merging import add_up
from headway.contract.runtime import Metrics, Progress, from_fields

_OF_TRAINING = frozenset({Progress.TYPE, Metrics.TYPE})


@dataclass(frozen=True, slots=True)
class Heard:
    """An entry of a report. `training` is what it says of how training goes; None for any other news, and for what makes
    no sense.
    """

    entry: RankEntry
    training: Progress | Metrics | None


def heard(entries: Iterable[RankEntry]) -> list[Heard]:
    """The entries, with what they say of training."""
    return [Heard(entry, _training(entry)) for entry in entries]


def merged(news: Sequence[Heard]) -> list[Heard]:
    """The news with messages of progress that follow one another made one: their statistics are sums, and of everything
    else the last one counts. It stands where the last of them stood.

    Messages that compare ranks stay apart, since it counts how many say the same in a row.
    """
    kept: list[Heard] = []
    latest: dict[str, int] = {}
    """By job: where its latest entry is kept, if that can be added to."""
    for one in news:
        job_id, message = one.entry.job_id, one.training
        before = latest.get(job_id)
        if not isinstance(message, Progress) or message.rank_sample_s:
            latest.pop(job_id, None)
            kept.append(one)
        elif before is not None and (both := _add_up(kept[before], one, message)) is not None:
            kept[before] = Heard(one.entry, both)
        else:
            latest[job_id] = len(kept)
            kept.append(one)
    return kept


def _training(entry: RankEntry) -> Progress | Metrics | None:
    if not isinstance(entry, RankMessage) or entry.message.get("type") not in _OF_TRAINING:
        return None
    try:
        message = from_fields(entry.message)
    except ValueError:
        return None  # to be refused by itself, with an event
    return message if isinstance(message, Progress | Metrics) else None


def _add_up(kept: Heard, one: Heard, after: Progress) -> Progress | None:
    """Both messages in one; None if they are about different things."""
    before = kept.training
    assert isinstance(before, Progress), "nothing else is added to"
    assert isinstance(kept.entry, RankMessage), "nothing else speaks of progress"
    assert isinstance(one.entry, RankMessage), "nothing else speaks of progress"
    if (kept.entry.rank, kept.entry.generation) != (one.entry.rank, one.entry.generation):
        return None
    return add_up(before, after)
