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
    latest: dict[str, tuple[int, RankMessage, Progress]] = {}
    """By job: its last entry and where that is kept, if it is one of progress."""
    for entry in entries:
        if not isinstance(entry, RankEntry):
            kept.append(entry)
            continue
        before, said = latest.pop(entry.job_id, None), _progress(entry)
        if said is None:
            kept.append(entry)
            continue
        message, progress = said
        if before is not None and (message.rank, message.generation) == (
            before[1].rank,
            before[1].generation,
        ):
            both = add_up(before[2], progress)
            if both is not None:
                kept[before[0]] = None
                progress = both
                message = message.model_copy(update={"message": {"type": both.TYPE, **asdict(both)}})
        latest[entry.job_id] = (len(kept), message, progress)
        kept.append(message)
    return [entry for entry in kept if entry is not None]


def _progress(entry: AnyEntry) -> tuple[RankMessage, Progress] | None:
    if not isinstance(entry, RankMessage) or entry.message.get("type") != Progress.TYPE:
        return None
    try:
        message = from_fields(entry.message)
    except ValueError:
        return None
    return (entry, message) if isinstance(message, Progress) else None
