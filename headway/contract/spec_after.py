"""The part `after` of the job file: other jobs that a job waits for."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from headway.contract.spec_parts import SpecPart

MOST_AFTER: Final = 20
"""Maximum number of jobs that one job waits for."""
JOB_PATTERN: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
"""Regular expression of names and ids of jobs."""


_JobName = Annotated[str, Field(pattern=JOB_PATTERN)]


class AfterEnd(StrEnum):
    """Ends of a job for which another one waits: success, failure, or any end."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ENDED = "ended"


class After(SpecPart):
    """A job that must end before this one starts, by name or id.

    With `files`, the ranks find the files of its output folder in the folder that the variable of `files_variable` names.
    """

    job: Annotated[_JobName, Field(description="Name or id of a job of the same project.")]
    on: Annotated[AfterEnd, Field(description="The end that is waited for: succeeded, failed or ended.")] = (
        AfterEnd.SUCCEEDED
    )
    files: Annotated[bool, Field(description="Whether the ranks find the files of its output folder.")] = True


def files_variable(job: str) -> str:
    """Return the environment variable with the folder of a predecessor's files: `HEADWAY_AFTER_PREP_DATA` for `prep-data`."""
    return f"HEADWAY_AFTER_{job.upper().replace('-', '_')}"


def files_prefix(job: str) -> str:
    """Return the prefix of the copy of a predecessor's files, relative to the checkpoints of the job that waits for it."""
    return f"after/{job}/"


def _of_name(value: Any) -> Any:
    return {"job": value} if isinstance(value, str) else value


AfterJob = Annotated[After, BeforeValidator(_of_name)]
"""An entry of `after`. A name or id alone means that this job must succeed."""
