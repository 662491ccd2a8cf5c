"""Texts on excluded configurations: every exclusion has one, with the numbers behind it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headway.contract.run_facts import ImposedChange
from headway.contract.views.jobs import JobProgress
from service.domain.allocation.decision.note_texts import note_text
from service.domain.allocation.inputs.notes import Note
from service.domain.cluster.market_limits import MarketLimit
from service.domain.cluster.snapshot import Limit, Snapshot
from service.domain.jobs.job import Job
from tests.unit.service.builders import NOW, snapshot_of
from tests.unit.service.domain.allocation.scopes import RUNNING, elastic_job

SILENT = {Note.NOT_ALLOWED, Note.OFFERED, Note.TOO_FAR}
"""Notes without a text: options never show the first and the last, and an offered configuration needs none."""


def known(**fields: Any) -> tuple[Job, Snapshot]:
    """A job with everything that a text could mention."""
    imposed = [ImposedChange(at=NOW - timedelta(seconds=age_s), cost_s=1.25) for age_s in (900, 300, 5)]
    job = elastic_job(
        state=RUNNING,
        **{
            "age_s": 12.0,
            "grow_after": NOW + timedelta(seconds=75),
            "goal": {"deadline": NOW + timedelta(hours=26)},
            "progress": JobProgress(imposed=imposed),
            **fields,
        },
    )
    limit = MarketLimit(slots={}, on_demand=3, spot=17, phase="behind", reason="behind uniform progress")
    return job, replace(snapshot_of([], [job]), limits={"j": Limit(1234.5)}, market_limits={"j": limit})


@pytest.mark.parametrize("note", sorted(set(Note) - SILENT))
def test_every_exclusion_has_a_text(note: Note) -> None:
    assert note_text(note, *known())


@pytest.mark.parametrize("note", sorted(SILENT))
def test_other_notes_have_none(note: Note) -> None:
    assert note_text(note, *known()) == ""


def test_texts_of_different_notes_differ() -> None:
    texts = [note_text(note, *known()) for note in set(Note) - SILENT]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("note", "parts"),
    [
        (Note.TOO_YOUNG, ["12 s", "30 s"]),
        (Note.BACK_OFF, ["12:01:15 UTC"]),
        (Note.AT_REST, ["2 in ten minutes", "2.5 s"]),
        (Note.NO_GAIN, ["5%"]),
        (Note.OVER_BUDGET, ["$1,234.50"]),
        (Note.DEADLINE, ["2026-11-02 14:00"]),
        (Note.OTHER_MARKET, ["3 on-demand", "17 spot", "uniform progress"]),
        (Note.NOT_MEASURED, ["headway resize j"]),
        (Note.UNKNOWN_RESUME, ["headway resize j", "resumes: true"]),
    ],
)
def test_a_text_has_the_numbers_behind_the_exclusion(note: Note, parts: list[str]) -> None:
    text = note_text(note, *known())
    assert [part for part in parts if part not in text] == []


@pytest.mark.parametrize(("live", "word"), [(True, "pause"), (False, "restart")])
def test_a_change_in_place_costs_a_pause_and_any_other_a_restart(live: bool, word: str) -> None:
    assert word in note_text(Note.NO_GAIN, *known(live=live))


def test_the_option_that_a_job_holds_is_called_current() -> None:
    assert note_text(Note.CURRENT, *known()) == "current"


@pytest.mark.parametrize(("age_s", "said"), [(29.6, "29 s ago"), (0.4, "0 s ago"), (-3.0, "0 s ago")])
def test_a_young_job_is_never_said_to_be_as_old_as_it_must_be(age_s: float, said: str) -> None:
    job, snapshot = known(age_s=age_s)
    text = note_text(Note.TOO_YOUNG, job, snapshot)
    assert said in text
    assert "until 30 s" in text
