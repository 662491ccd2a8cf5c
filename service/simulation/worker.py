"""A what-if simulation as a program of its own: the question on stdin, progress and the answer on stdout.

Rounds and the API share their process with nothing that computes for minutes; and what takes too long can be ended.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from headway.contract.simulations import SimulationRequest, SimulationResult
from service.domain.cluster import Snapshot
from service.domain.errors import InvalidField
from service.simulation.whatif import compare

_POLITE = 10
"""Processes that serve people and jobs go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a worker is asked; `ended_samples` are what ended jobs took in samples, by class."""

    snapshot: Snapshot
    request: SimulationRequest
    ended_samples: Mapping[str, Sequence[float]]


class Line(BaseModel):
    """One line of a worker's output: how far it is, what came out, or why nothing can."""

    progress: float = 0.0
    result: SimulationResult | None = None
    refused: str | None = None


def main() -> None:
    """Answer the one question on stdin."""
    os.nice(_POLITE)
    # Our own parent wrote it.
    question: Question = pickle.load(sys.stdin.buffer)  # noqa: S301
    try:
        result = compare(
            question.snapshot,
            question.request,
            question.ended_samples,
            on_progress=lambda done: _say(Line(progress=done)),
        )
        _say(Line(progress=1.0, result=result))
    except InvalidField as error:
        _say(Line(refused=f"{error.field}: {error.message}"))


def _say(line: Line) -> None:
    sys.stdout.write(line.model_dump_json(exclude_defaults=True) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
