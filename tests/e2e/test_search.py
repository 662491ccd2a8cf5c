"""A real job finds its size by itself, with real visits, and its forecasts are scored when it has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.contract.spec import JobSpec
from headway.contract.views.forecasts import SearchPhase
from headway.contract.views.jobs import JobState
from tests.e2e.conftest import SCRIPTS, Cluster

EPOCHS = 80


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_that_gains_nothing_from_a_second_slot_gives_it_back(
    cluster: Cluster, name: str, tmp_path: Path
) -> None:
    hurry = tmp_path / "hurry"
    spec = {
        "name": name,
        "workdir": str(SCRIPTS),
        "run": "python patient.py",  # each step takes the same time, on however many slots
        "env": {"HURRY": str(hurry), "EPOCHS": str(EPOCHS)},
        "elastic": {"min": 1, "max": 2},
        "goal": {"objective": "cost", "search": "full"},
    }
    job = cluster.client.submit(JobSpec.model_validate(spec)).id

    def settled() -> bool:
        search = cluster.client.job(job).progress.search
        return search is not None and search.phase is SearchPhase.SETTLED

    cluster.until(settled, "the search to settle")
    cluster.until(lambda: cluster.client.job(job).size == 1, "one slot")
    view = cluster.client.job(job)
    search = view.progress.search
    assert search is not None
    assert (search.slots, search.visited, search.visits, search.skipped) == (1, 2, 2, 0)
    assert search.overhead_share is not None
    assert 0 < search.overhead_share <= search.bound
    sizes = [event.data["to"] for event in cluster.client.events(job) if event.kind == "switch"]
    assert sizes == [2, 1]
    assert "the cheapest known configuration" in cluster.headway("describe", job).stdout
    hurry.touch()
    cluster.until(lambda: cluster.client.job(job).state is JobState.SUCCEEDED, "its end")
    (forecast,) = [one for one in cluster.client.job(job).progress.forecasts if one.share == 0.1]
    assert forecast.took_s is not None
    assert any(event.kind == "forecast_scored" for event in cluster.client.events(job))
