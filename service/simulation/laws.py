"""Speedup laws: how much faster a job is on more slots where nothing was measured of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from service.domain.arrays import FloatArray
from service.domain.policies.policy import Configurations
from service.simulation.world import Application, BadInput

Law: TypeAlias = Callable[[FloatArray], FloatArray]
"""Speedups over one slot, by slots (at least 1)."""


def amdahl(parallel: float) -> Law:
    """1 / ((1 - f) + f / k) for a parallel part f, from 0 to 1 (Amdahl, 1967). Raises BadInput."""
    if not 0.0 <= parallel <= 1.0:
        raise BadInput(f"the parallel part of Amdahl's law is from 0 to 1, not {parallel:g}")
    return lambda slots: 1.0 / (1.0 - parallel + parallel / slots)


def power(exponent: float) -> Law:
    """To the power: k ** q for q from 0 (no speedup) to 1 (linear). Raises BadInput."""
    if not 0.0 <= exponent <= 1.0:
        raise BadInput(f"the exponent of a power law is from 0 to 1, not {exponent:g}")
    return lambda slots: np.asarray(slots**exponent)


def law_of(text: str) -> Law:
    """The law that `amdahl:0.95` or `power:0.8` names. Raises BadInput."""
    name, _, value = text.partition(":")
    makers = {"amdahl": amdahl, "power": power}
    try:
        return makers[name](float(value))
    except (KeyError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{text!r} is no speedup law; give amdahl:PART or power:EXPONENT") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class LawOfJobs:
    """Jobs of which only a law is known.

    Attributes:
        law: of their speedups.
        restart_s: a checkpoint, a start and a load.
    """

    law: Law
    restart_s: float = 30.0

    def application(self, name: str, configurations: Configurations) -> Application:
        """The same on all kinds; a reference sample is a second on one slot, so that the work of a job is its seconds on one
        slot.
        """
        speedup = self.law(configurations.slots.astype(np.float64))
        return Application(
            name=name, boundaries=np.array([0.0, 1.0]), goodput=speedup[None, :], restart_s=self.restart_s
        )
