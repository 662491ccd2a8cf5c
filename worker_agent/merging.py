"""What ranks have said of their progress since the last report, in fewer entries that say the same. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from headway.contract.agents import AnyEntry, RankEntry, RankMessage
from headway.contract.merging import add_up
from headway.contract.runtime import Progress, from_fields


def merged(entries: Iterable[AnyEntry]) -> list[AnyEntry]:
    """The entries with those of progress that follow one another made one, for each job. It stands where the last of them
    stood and has its number, so that numbers ascend as before.
    """
    kept: list[AnyEntry | None] = []
    latest: dict[str, int] = {}
    """By job: where its last entry is kept, if that is one of progress."""
    for entry in entries:
        if not isinstance(entry, RankEntry):
            kept.append(entry)
            continue
        before = latest.pop(entry.job_id, None)
        earlier = None if before is None else kept[before]
        both = None if earlier is None else _add_up(earlier, entry)
        if before is not None and both is not None:
            kept[before] = None
        if _progress(entry) is not None:
            latest[entry.job_id] = len(kept)
        kept.append(both or entry)
    return [entry for entry in kept if entry is not None]


def _add_up(before: AnyEntry, after: AnyEntry) -> RankMessage | None:
    """Two entries in one, with the number of the second; None where they say different things."""
    first, second = _progress(before), _progress(after)
    if first is None or second is None:
        return None
    assert isinstance(before, RankMessage), "nothing else speaks of progress"
    assert isinstance(after, RankMessage), "nothing else speaks of progress"
    same_process = (before.rank, before.generation) == (after.rank, after.generation)
    both = add_up(first, second) if same_process else None
    return None if both is None else after.model_copy(update={"message": {"type": both.TYPE, **asdict(both)}})


def _progress(entry: AnyEntry) -> Progress | None:
    if not isinstance(entry, RankMessage) or entry.message.get("type") != Progress.TYPE:
        return None
    try:
        message = from_fields(entry.message)
    except ValueError:
        return None
    return message if isinstance(message, Progress) else None
