"""Rule for the local batches of ranks of unequal speed. Standard library only, because every rank reads it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Final

OFF = "off"
"""Text of the rule that keeps local batches even."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceRule:
    """Limits of uneven local batches.

    `dead_band` is the share of a step's time that a change must be expected to save. A rank takes at least
    `min_share` and at most `max_share` times the samples of an even division.

    Raises:
        ValueError: a value is out of its bounds.
    """

    dead_band: float = 0.05
    min_share: float = 0.0
    max_share: float = math.inf

    def __post_init__(self) -> None:
        if not 0.0 <= self.dead_band < 1.0:
            raise ValueError(f"dead_band is {self.dead_band}; it must be from 0 to below 1")
        if not 0.0 <= self.min_share <= 1.0 <= self.max_share:
            raise ValueError(
                f"min_share is {self.min_share} and max_share {self.max_share}; an even share is 1, so they must be "
                "at most 1 and at least 1"
            )

    def __str__(self) -> str:
        """Return the rule as text, from which `balance_of` reads it."""
        return json.dumps({name: value for name, value in asdict(self).items() if value != math.inf})


USUAL_BALANCE: Final = BalanceRule()
"""Rule of a job file without `batch.balance`."""


def balance_of(text: str) -> BalanceRule | None:
    """Return the rule in a text; None for even local batches.

    Raises:
        ValueError: the text is not a rule.
    """
    if text == OFF:
        return None
    try:
        return BalanceRule(**{name: float(value) for name, value in json.loads(text).items()})
    except (TypeError, AttributeError) as error:
        raise ValueError(
            f"{text[:80]!r} is not {OFF} or an object of dead_band, min_share and max_share"
        ) from error
