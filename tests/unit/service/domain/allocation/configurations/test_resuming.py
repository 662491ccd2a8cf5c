"""Growth by restart: which jobs need a measured speed, and which need proof that they resume."""

from __future__ import annotations

from typing import Any

import pytest

from headway.contract.run_facts import ProgressSource, Resumption
from headway.contract.views.jobs import JobProgress
from service.domain.allocation.configurations.resuming import (
    is_restarted,
    lacks_measurement,
    may_lose_its_work,
    why_not_resumed,
    why_unmeasured,
)
from tests.unit.service.domain.allocation.scopes import RUNNING, elastic_job


def shown(*, resumes: bool) -> Resumption:
    return Resumption(generation=2, first=0, stopped_at=100, began_at=99 if resumes else 0, resumes=resumes)


def script(evidence: Resumption | None = None) -> JobProgress:
    return JobProgress(source=ProgressSource.SCRIPT, samples=200, first_samples=0, resumption=evidence)


LIBRARY = JobProgress(source=ProgressSource.LIBRARY)


@pytest.mark.parametrize(
    ("live", "resize", "restarted"),
    [
        (True, "live", False),
        (True, "restart", False),
        (True, "never", False),
        (False, "live", True),
        (False, "restart", True),
        (False, "never", False),
    ],
)
def test_a_job_is_restarted_unless_it_changes_in_place_or_not_at_all(
    live: bool, resize: str, restarted: bool
) -> None:
    job = elastic_job(state=RUNNING, live=live, elastic={"resize": resize}, progress=script())
    assert is_restarted(job) == restarted
    assert lacks_measurement(job, measured=False) == restarted
    assert may_lose_its_work(job) == restarted
    assert not lacks_measurement(job, measured=True)


@pytest.mark.parametrize(
    ("progress", "said", "loses"),
    [
        (script(), None, True),
        (script(shown(resumes=True)), None, False),
        (script(shown(resumes=False)), None, True),
        # The user's statement overrules what was seen.
        (script(), True, False),
        (script(shown(resumes=False)), True, False),
        (script(shown(resumes=True)), False, True),
        # The library restores its checkpoints unless the job file denies it.
        (LIBRARY, None, False),
        (LIBRARY, False, True),
        # A measured job of an earlier version has no source of its progress.
        (JobProgress(), None, False),
        (JobProgress(), False, True),
        (JobProgress(resumption=shown(resumes=False)), None, True),
    ],
)
def test_growth_needs_proof_that_a_script_resumes(
    progress: JobProgress, said: bool | None, loses: bool
) -> None:
    job = elastic_job(state=RUNNING, progress=progress, resumes=said)
    assert may_lose_its_work(job) == loses
    in_place = elastic_job(state=RUNNING, progress=progress, resumes=said, live=True)
    assert not may_lose_its_work(in_place)


@pytest.mark.parametrize("fields", [{}, {"name": "other"}])
def test_both_reasons_name_the_command_that_sets_the_size(fields: dict[str, Any]) -> None:
    job = elastic_job(state=RUNNING, progress=script(), **fields)
    for text in (why_unmeasured(job), why_not_resumed(job)):
        assert text.endswith(f"headway resize {job.name}") or f"headway resize {job.name} " in text


def test_the_reason_tells_unknown_from_disproved() -> None:
    unknown = why_not_resumed(elastic_job(state=RUNNING, progress=script()))
    disproved = why_not_resumed(elastic_job(state=RUNNING, progress=script(shown(resumes=False))))
    assert "is not known to resume" in unknown
    assert "does not resume" in disproved
