"""Truncation of report entries that are too large for the service, without I/O.

The fields that a job needs to continue are kept; long texts are cut.
"""

from __future__ import annotations

import json

from headway.contract.agents import AnyEntry, OutputReport, RankExited, RankMessage, RanksHung, StartFailed
from worker_agent.link.outbox import REPLACEABLE

_KEPT_CHARACTERS = 500


def truncated(entry: AnyEntry) -> AnyEntry | None:
    """Return the entry without its long parts, or None if it has none or if the rest would be useless."""
    match entry:
        case RankMessage(message=message):
            if message.get("type") in REPLACEABLE:
                return None
            short = {
                name: value
                for name, value in message.items()
                if len(json.dumps(value, default=str)) <= _KEPT_CHARACTERS
            }
            smaller: AnyEntry = entry.model_copy(update={"message": short})
        case RankExited():
            smaller = entry.model_copy(update={"log_tail": []})
        case RanksHung():
            smaller = entry.model_copy(update={"stacks": []})
        case StartFailed(message=text):
            smaller = entry.model_copy(update={"message": text[:_KEPT_CHARACTERS]})
        case OutputReport(message=text):
            smaller = entry.model_copy(update={"paths": [], "message": text[:_KEPT_CHARACTERS]})
        case _:
            return None
    return smaller if smaller != entry else None
