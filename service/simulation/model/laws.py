"""Speedup laws: speed on several slots for jobs without measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import FloatArray
from service.simulation.model.world import USUAL_RESTART_S, Application, BadInput

Law: TypeAlias = Callable[[FloatArray], FloatArray]
"""Function from slots (at least 1) to the speedup over one slot."""


def amdahl(parallel: float) -> Law:
    """Return Amdahl's law (1967), 1 / ((1 - f) + f / k), for a parallel part f from 0 to 1. Raise BadInput."""
    if not 0.0 <= parallel <= 1.0:
        raise BadInput(f"the parallel part of Amdahl's law must be from 0 to 1, not {parallel:g}")
    return lambda slots: 1.0 / (1.0 - parallel + parallel / slots)


def power(exponent: float) -> Law:
    """Return the power law k ** q, for q from 0 (no speedup) to 1 (linear). Raise BadInput."""
    if not 0.0 <= exponent <= 1.0:
        raise BadInput(f"the exponent of a power law must be from 0 to 1, not {exponent:g}")
    return lambda slots: np.asarray(slots**exponent)


def law_of(text: str) -> Law:
    """Return the law that a text such as `amdahl:0.95` or `power:0.8` names. Raise BadInput."""
    name, _, value = text.partition(":")
    makers = {"amdahl": amdahl, "power": power}
    try:
        return makers[name](float(value))
    except (KeyError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{text!r} is not a speedup law; give amdahl:PART or power:EXPONENT") from error


def application_of(law: Law, configurations: Configurations) -> Application:
    """Return the application of jobs without measurements, whose speedups follow a law on all kinds.

    A reference sample is a second on one slot, so the work of a job is its seconds on one slot.
    """
    speedup = np.where(configurations.mixed, 0.0, law(configurations.slots.astype(np.float64)))
    return Application(
        name="job",
        boundaries=np.array([0.0, 1.0]),
        goodput=speedup[None, :],
        restart_s=USUAL_RESTART_S,
    )
