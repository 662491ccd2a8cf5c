"""Worker program of a what-if simulation: it reads the question from stdin and writes progress and the answer
to stdout.

A separate process keeps minutes of computation out of the process of the rounds and the API, and it can be
terminated if it takes too long.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from headway.contract.views.simulations import SimulationRequest, SimulationResult
from service.domain.cluster.snapshot import Snapshot
from service.domain.policies.framework.checked import PolicyFailed
from service.domain.shared.errors import InvalidField
from service.plugins import installed_policies
from service.simulation.whatif import compare

_NICENESS = 10
"""Increment of the niceness of the worker, so that processes that serve users and jobs have priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Input of a worker. `ended_samples` are the samples that ended jobs took, by class."""

    snapshot: Snapshot
    request: SimulationRequest
    ended_samples: Mapping[str, Sequence[float]]


class WorkerMessage(BaseModel):
    """Line of a worker's output: its progress, the result, or the reason for a refusal."""

    progress: float = 0.0
    result: SimulationResult | None = None
    refused: str | None = None


def main() -> None:
    """Answer the single question on stdin."""
    os.nice(_NICENESS)
    # The parent process, which is the service, wrote this input.
    question: Question = pickle.load(sys.stdin.buffer)  # noqa: S301
    try:
        result = compare(
            question.snapshot,
            question.request,
            question.ended_samples,
            on_progress=lambda done: _say(WorkerMessage(progress=done)),
            policies=installed_policies(),
        )
        _say(WorkerMessage(progress=1.0, result=result))
    except InvalidField as error:
        _say(WorkerMessage(refused=f"{error.field}: {error.message}"))
    except PolicyFailed as error:
        _say(WorkerMessage(refused=str(error)))


def _say(line: WorkerMessage) -> None:
    sys.stdout.write(line.model_dump_json(exclude_defaults=True) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
