"""The next step after an attempt to deliver a message."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Final

from headway.contract.views.webhooks import DeliveryState

FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 3600.0
TRIED_FOR: Final = timedelta(hours=24)
"""Age at which a message is given up. A webhook that has failed for as long is disabled."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a receiver: its HTTP status, None if there was none, and its beginning or the reason."""

    status: int | None
    text: str

    @property
    def accepted(self) -> bool:
        """True if the receiver has the message. Redirects are not followed, so they count as failures."""
        return self.status is not None and HTTPStatus(200) <= self.status < HTTPStatus(300)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of a message after an attempt, and whether its webhook is disabled."""

    state: DeliveryState
    next_at: datetime | None = None
    disable: str = ""
    """The reason that the webhook is disabled; empty if it is not."""


def delay_s(attempts: int, chance: float) -> float:
    """Return the seconds until the next attempt: exponential backoff with jitter.

    Args:
        attempts: number of attempts so far, at least 1.
        chance: a random number from 0 to 1, which chooses between half of the delay and all of it.
    """
    full_s = min(FIRST_DELAY_S * 2.0 ** min(attempts - 1, 30), LONGEST_DELAY_S)
    return full_s * (0.5 + 0.5 * chance)


def judge(
    answer: Answer,
    *,
    attempts: int,
    created_at: datetime,
    failing_since: datetime,
    now: datetime,
    chance: float,
) -> Verdict:
    """Return the next step after an attempt.

    A message is tried again for `TRIED_FOR`. The webhook is disabled once it has failed for as long without
    one success, or when the receiver answers 410 Gone.
    """
    if answer.accepted:
        return Verdict(DeliveryState.DELIVERED)
    if answer.status == HTTPStatus.GONE:
        return Verdict(DeliveryState.FAILED, disable="the receiver answered 410 Gone")
    hours = TRIED_FOR / timedelta(hours=1)
    disable = (
        f"no message was delivered for {hours:.0f} h; the last answer: {_last(answer)}"
        if now - failing_since >= TRIED_FOR
        else ""
    )
    if now - created_at >= TRIED_FOR:
        return Verdict(DeliveryState.FAILED, disable=disable)
    return Verdict(DeliveryState.WAITING, now + timedelta(seconds=delay_s(attempts, chance)), disable=disable)


def _last(answer: Answer) -> str:
    return answer.text[:200] if answer.status is None else f"{answer.status} {answer.text[:200]}".rstrip()
