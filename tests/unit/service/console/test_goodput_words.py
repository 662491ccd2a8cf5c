"""Words under the goodput chart of a job."""

from __future__ import annotations

from headway.contract.views.forecasts import Mark
from service.console.pictures.job_curves import goodput_chart, speedup_text
from tests.unit.headway.cli.verbs.jobs.test_decisions import KNOWN, configuration, forecast_of


def test_scaling_without_a_measurement_on_one_slot_is_not_claimed() -> None:
    only = configuration(4, marks=[Mark.PRESENT], one_slot_measured=False)
    words = goodput_chart(forecast_of(only)).words
    assert "of linear scaling" not in words
    assert "without a measurement on one slot" in words
    assert "4.00" not in speedup_text(only)
    measured = configuration(4, marks=[Mark.PRESENT])
    assert "of linear scaling" in goodput_chart(forecast_of(measured)).words
    assert speedup_text(measured) == "4.00×"


def test_goodput_of_a_job_of_steps_is_in_steps() -> None:
    steps = KNOWN.model_copy(update={"unit": "steps"})
    words = goodput_chart(forecast_of(configuration(marks=[Mark.PRESENT]), work=steps)).words
    assert "steps/s" in words
