"""Configurations, measurements and positions of one job in its search."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.contract.views.forecasts import SearchPhase
from service.domain.perf.searches.search import Known, SearchPosition
from service.domain.policies.framework.policy import Configurations

SETTLED, VISITING = SearchPhase.SETTLED, SearchPhase.VISITING
STEP_SAMPLES = 64.0


def sizes(*slots: int, kinds: int = 1, usd: float = 1.0) -> Configurations:
    """The same sizes of each kind, at `usd` an hour and slot."""
    every = np.tile(np.array(slots), kinds)
    return Configurations(
        kinds=tuple(f"kind-{index}" for index in range(kinds)),
        kind=np.repeat(np.arange(kinds), len(slots)),
        slots=every,
        nodes=np.ones_like(every),
        usd_per_h=every * usd,
    )


def known_of(per_s: list[float], steps: list[float] | None = None, low: float = 1.0, **rest: Any) -> Known:
    """Speeds, with so many steps made at them."""
    speed = np.array(per_s, dtype=np.float64)
    made = np.array(steps if steps is not None else [0.0] * len(per_s))
    runs = np.where(speed > 0, speed, 1.0)
    fields = {
        "allowed": np.ones(len(per_s), dtype=np.bool_),
        "batch": np.zeros(len(per_s), dtype=np.int64),
        "step_samples": np.full(len(per_s), STEP_SAMPLES),
        "shown": np.zeros(len(per_s), dtype=np.bool_),
        "modelled": bool(made.any()),
        **rest,
    }
    return Known(
        per_s=speed,
        low=speed * low,
        steps=made,
        samples=made * STEP_SAMPLES,
        seconds=made * STEP_SAMPLES / runs,
        **fields,
    )


def place_of(current: int = -1, **fields: Any) -> SearchPosition:
    return SearchPosition(
        **{
            "current": current,
            "settled_on": -1,
            "young": False,
            "left": 1e6,
            "done": 1e4,
            "change_s": 0.5,
            **fields,
        }
    )
