"""Facts about the runs of a job: imposed changes, the source of its progress, its resumption after a stop."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel


class ImposedChange(BaseModel):
    """A change of a job's slots that no user asked for. `cost_s` is the training time lost to it."""

    at: datetime
    cost_s: float


class ProgressSource(StrEnum):
    """The source of training progress: reports of the training library, or the steps of a script without it."""

    LIBRARY = "library"
    SCRIPT = "script"


class Resumption(BaseModel):
    """The first step that a script without the library reported after its latest stop. Steps count as in `samples`.

    A script resumes when that step lies nearer to where it was stopped than to where the job first began.
    """

    generation: int
    """The generation that was started after the stop."""
    first: int
    """The first step that the job ever reported."""
    stopped_at: int
    """The last step before the stop."""
    began_at: int
    """The first step after the stop."""
    resumes: bool
