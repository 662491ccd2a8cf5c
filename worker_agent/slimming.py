"""News that are too large for the service, made smaller: what a job needs to go on stays, texts are cut. Pure."""

from __future__ import annotations

import json

from headway.contract.agents import AnyEntry, RankExited, RankMessage, RanksHung, StartFailed
from worker_agent.outbox import REPLACEABLE

_KEPT_CHARACTERS = 500


def slimmed(entry: AnyEntry) -> AnyEntry | None:
    """The entry without what is long in it; None where nothing would be left that anybody needs, or where nothing is long."""
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
        case _:
            return None
    return smaller if smaller != entry else None
