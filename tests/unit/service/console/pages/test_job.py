"""The page of a job: its two sentences, its actions, its tables."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from headway.contract.run_facts import JobCost
from headway.contract.views.decisions import ExplanationView
from headway.contract.views.forecasts import (
    Confidence,
    ConfigurationForecast,
    ForecastView,
    Mark,
    PredictionScore,
    Work,
    WorkSource,
)
from headway.contract.views.jobs import JobProgress, JobState, JobView, Page, Reason
from service.console.html.fragments import Fragment, Listing
from service.console.pages.job import JobViews, job_page
from service.console.pages.jobs import end_of, jobs_fragments, sizes_path
from service.console.pictures.job_curves import MOST_CHARTS, metric_groups, metrics_charts
from service.console.templates import Templates
from service.usecases.ports.jobs import SizeChange
from service.usecases.ports.sweeps import TrialOf
from tests.unit.headway.stub import event_view, job_view

NOW = job_view().submitted_at + timedelta(minutes=10)


def configuration(slots: int, *marks: Mark, **changes: Any) -> ConfigurationForecast:
    fields: dict[str, Any] = {
        "device_kind": "a100",
        "slots": slots,
        "nodes": 1,
        "goodput": 100.0 * slots,
        "goodput_low": 90.0 * slots,
        "goodput_high": 110.0 * slots,
        "speedup": float(slots),
        "confidence": Confidence.HIGH,
        "global_batch": 64,
        "local_batch": 64,
        "accumulation": 1,
        "time_s": 7200.0 / slots,
        "time_p90_s": 9000.0 / slots,
        "cost_usd": 4.0,
        "cost_p90_usd": 5.0,
        "usd_per_h": 2.0 * slots,
        "marks": list(marks),
    }
    return ConfigurationForecast(**{**fields, **changes})


def views(job: JobView, *configurations: ConfigurationForecast, message: str = "is fine") -> JobViews:
    return JobViews(
        job=job,
        present=message,
        colour=0,
        explanation=ExplanationView(
            job_id=job.id,
            name=job.name,
            state=job.state,
            action="keep",
            reason=job.reason,
            message=message,
            round_id=None,
            decided_at=None,
        ),
        forecast=ForecastView(
            job_id=job.id,
            name=job.name,
            at=NOW,
            work=Work(
                samples=1.0, samples_p90=1.0, source=WorkSource.SCRIPT, reason="the script does not say"
            ),
            configurations=list(configurations),
            score=PredictionScore(
                count=0, median_ratio=None, median_error=None, p90_error=None, coverage=None
            ),
            predictions=[],
        ),
        events=[],
        sizes=[],
        series={},
    )


COST = JobCost(
    usd=3.0,
    useful_usd=3.0,
    resize_usd=0,
    lost_usd=0,
    unknown_usd=0,
    unpriced=False,
    expected_usd=7.0,
    left_usd=None,
)


def test_a_job_that_waits_says_why_and_what_it_will_cost() -> None:
    job = job_view(JobState.PENDING, reason=Reason.WAITING_FOR_CAPACITY, allocation={}, size=0, cost=None)
    page = job_page(
        views(job, configuration(2, Mark.SMALLEST), message="needs 2 slots, and 1 is free"),
        may_control=True,
        now=NOW,
    )
    assert page.head.outlook.why == f"{job.name} is pending: needs 2 slots, and 1 is free."
    assert page.head.outlook.cost == (
        "Once it starts on 2 a100 slots, it takes about 1h00m (with 90 % at most 1h15m) and costs about $4.00 (at most "
        "$5.00)."
    )


def test_a_job_that_runs_says_what_it_has_cost_and_will() -> None:
    page = job_page(views(job_view(cost=COST), configuration(2, Mark.PRESENT)), may_control=True, now=NOW)
    assert page.head.outlook.cost.startswith(
        "It has cost $3.00 so far, and will cost about $4.00 (at most $5.00) more"
    )


@pytest.mark.parametrize(
    ("p90_s", "said"), [(300.0, "with 90 % at most 5m00s"), (180.4, "as forecast"), (None, "as forecast")]
)
def test_when_it_ends_with_certainty_is_said_where_that_is_later(p90_s: float | None, said: str) -> None:
    ends = configuration(2, Mark.PRESENT, time_s=180.0, time_p90_s=p90_s)
    page = job_page(views(job_view(cost=COST), ends), may_control=True, now=NOW)
    (fact,) = [one for one in page.facts if one.label == "Ends in"]
    assert (fact.value, fact.note) == ("3m00s", said)


def test_what_nobody_knows_is_said() -> None:
    unknown = configuration(1, Mark.PRESENT, time_s=None, time_p90_s=None, cost_usd=None, cost_p90_usd=None)
    page = job_page(views(job_view(cost=COST), unknown), may_control=True, now=NOW)
    assert "its end is not known yet (the script does not say)" in page.head.outlook.cost
    free = configuration(2, Mark.SMALLEST, time_s=None, usd_per_h=0.0)
    page = job_page(views(job_view(cost=None), free), may_control=True, now=NOW)
    assert page.head.outlook.cost.startswith(
        "It costs nothing on 2 a100 slots, since these slots have no price; "
    )
    page = job_page(views(job_view(cost=None)), may_control=True, now=NOW)
    assert "there is no forecast" in page.head.outlook.cost


@pytest.mark.parametrize(
    ("state", "may_control", "verbs"),
    [
        (JobState.RUNNING, True, ("pause", "resize", "prioritize", "cancel")),
        (JobState.PAUSED, True, ("resume", "resize", "prioritize", "cancel")),
        (JobState.RUNNING, False, ()),
        (JobState.CANCELLING, True, ()),
        (JobState.FAILED, True, ("resume",)),
        (JobState.CANCELLED, True, ("resume",)),
        (JobState.FAILED, False, ()),
        (JobState.SUCCEEDED, True, ()),
    ],
)
def test_only_what_may_be_done_is_offered(state: JobState, may_control: bool, verbs: tuple[str, ...]) -> None:
    page = job_page(views(job_view(state)), may_control=may_control, now=NOW)
    assert page.actions.verbs == verbs


def change(size: int, begin_s: float, end_s: float | None) -> SizeChange:
    start = NOW - timedelta(seconds=100)
    return SizeChange(
        generation=1,
        size=size,
        device_kind="a100",
        reason="ALLOCATED",
        message="",
        granted_at=start + timedelta(seconds=begin_s),
        ended_at=None if end_s is None else start + timedelta(seconds=end_s),
    )


def test_sizes_are_steps_and_gaps_are_gaps() -> None:
    path = sizes_path([change(2, 0, 40), change(4, 50, None)], 4, NOW)
    assert path == "M0 18 H0.0 V9.5 H38.4 V18 H48.0 V1.0 H96.0 V18 Z"
    assert sizes_path([], 4, NOW) == ""


def test_a_row_says_when_a_job_ends_and_what_it_costs() -> None:
    job = job_view(cost=COST)
    _, rows = jobs_fragments(Page[JobView](items=[job]), {job.id: [change(2, 0, None)]}, NOW, {})
    assert isinstance(rows, Listing)
    row = rows.fragments[0].value
    assert (row.cost, row.cost_note) == ("$3.00", "of $7.00")
    assert row.sizes_words == "2"


UNPRICED = COST.model_copy(update={"usd": 0.0, "expected_usd": 0.0, "unpriced": True})


def test_job_without_prices_shows_no_dollars() -> None:
    free = {"cost_usd": 0.0, "cost_p90_usd": 0.0, "usd_per_h": 0.0}
    job = job_view(cost=UNPRICED)
    page = job_page(views(job, configuration(2, Mark.PRESENT, **free)), may_control=True, now=NOW)
    (spent,) = [one for one in page.facts if one.label == "Cost so far"]
    assert (spent.value, spent.note) == ("–", "its slots have no price")
    assert [one.cost for one in page.options] == ["–"]
    _, rows = jobs_fragments(Page[JobView](items=[job]), {}, NOW, {})
    assert isinstance(rows, Listing)
    assert (rows.fragments[0].value.cost, rows.fragments[0].value.cost_note) == ("–", "")
    pending = job_view(JobState.PENDING, allocation={}, size=0, cost=None)
    waiting = job_page(views(pending, configuration(2, Mark.SMALLEST, **free)), may_control=True, now=NOW)
    texts = [page.head.outlook.cost, waiting.head.outlook.cost]
    assert not any("$" in text for text in texts), texts


def test_row_of_a_job_has_its_priority_and_a_colour_once_it_held_slots() -> None:
    job = job_view()
    pending = job_view(JobState.PENDING, allocation={}, size=0, started_at=None)
    _, rows = jobs_fragments(Page[JobView](items=[job, pending]), {}, NOW, {job.id: 3})
    assert isinstance(rows, Listing)
    assert [one.value.priority for one in rows.fragments] == [job.spec.priority] * 2
    assert [one.value.hue for one in rows.fragments] == ["job-3", "unheld"]


def test_losses_are_drawn_before_other_metrics() -> None:
    series = {
        name: points(*values)
        for name, values in {
            "grad_norm": (40.0, 30.0),
            "accuracy": (0.1, 0.2),
            "val_loss": (2.0, 1.0),
            "loss": (2.0, 1.0),
        }.items()
    }
    assert [one.title for one in metrics_charts(series)] == ["loss, val_loss", "accuracy", "grad_norm"]


def points(*values: float) -> list[tuple[datetime, int, float]]:
    return [(NOW, 64 * number, value) for number, value in enumerate(values, start=1)]


def test_metrics_of_different_kinds_or_sizes_have_axes_of_their_own() -> None:
    series = {
        "loss": points(2.3, 0.4),
        "val_loss": points(2.4, 0.5),
        "huge_loss": points(9000, 8000),
        "lr": points(3e-4, 1e-5),
        "zero": points(0.0, 0.0),
        "accuracy": points(0.1, 0.9),
    }
    assert sorted(map(sorted, metric_groups(series).values())) == [
        ["accuracy"],
        ["huge_loss"],
        ["loss", "val_loss"],
        ["lr"],
        ["zero"],
    ]
    charts = metrics_charts(series)
    assert len({one.name for one in charts}) == len(charts) == 5
    (rate,) = [one for one in charts if one.title == "lr"]
    assert rate.words == "lr: 0.0003 at first, 1e-05 now, after 128 samples."
    many = {f"m{number}": points(1.0) for number in range(100)}
    assert len(metrics_charts(many)) == MOST_CHARTS


def test_trial_names_its_sweep_and_shows_its_parameters() -> None:
    job = job_view()
    job = job.model_copy(
        update={"spec": job.spec.model_copy(update={"parameters": {"lr": 0.012345678, "opt": "sgd"}})}
    )
    page = job_page(replace(views(job), trial_of=TrialOf("s1", "digits", 3)), may_control=True, now=NOW)
    assert [(one.label, one.value) for one in page.parameters] == [("lr", "0.012345678"), ("opt", "sgd")]
    head = Templates().fragment(Fragment("job-head", "job_head", page.head))
    assert 'trial 3 of the sweep <a href="/sweeps/s1">digits</a>' in head
    alone = job_page(views(job_view()), may_control=True, now=NOW)
    assert "sweep" not in Templates().fragment(Fragment("job-head", "job_head", alone.head))


def test_a_job_that_never_held_slots_has_no_empty_sections() -> None:
    job = job_view(JobState.PENDING, allocation={}, size=0, cost=None, started_at=None)
    page = job_page(views(job), may_control=True, now=NOW)
    templates = Templates()
    html = {
        fragment.id: templates.fragment(fragment)
        for fragment in page.contents()
        if isinstance(fragment, Fragment)
    }
    empty = {name for name, text in html.items() if "data-none" in text}
    assert empty == {
        "begun-checkpoints",
        "begun-log",
        "job-failures",
        "job-kept",
        "job-ledger",
        "job-options",
        "job-parameters",
        "no-learning",
        "words-goodput",
        "words-sizes",
    }
    assert [one.label for one in page.facts] == ["Slots", "Submitted", "Priority"]
    running = replace(views(job_view(cost=COST)), sizes=[change(2, 0, None)])
    page = job_page(running, may_control=True, now=NOW)
    html = {
        fragment.id: templates.fragment(fragment)
        for fragment in page.contents()
        if isinstance(fragment, Fragment)
    }
    assert {name for name, text in html.items() if "data-none" in text} == {
        "job-options",
        "job-parameters",
        "words-goodput",
    }


def test_the_page_and_the_list_show_progress_and_what_was_read() -> None:
    done = JobProgress(
        samples=910, total_samples=1000, progress=740.0, total_progress=1000.0, dataset_samples=100,
        samples_per_s=50.0, efficiency=0.5,
    )  # fmt: skip
    job = job_view(progress=done, cost=None)
    page = job_page(views(job, configuration(2)), may_control=True, now=NOW)
    (fact,) = [one for one in page.facts if one.label == "Progress"]
    assert (fact.value, fact.note) == ("74 %", "epoch 7.4 of 10 (progress), 9.1 read")
    assert fact.share == pytest.approx(0.74)
    assert end_of(job) == (pytest.approx(260 / 25), None)
    _, rows = jobs_fragments(Page[JobView](items=[job]), {}, NOW, {})
    assert isinstance(rows, Listing)
    row = rows.fragments[0].value
    assert (row.progress, row.share) == ("74 %", pytest.approx(0.74))


def test_a_preempted_job_says_for_which_job_it_lost_its_slots_last() -> None:
    job = job_view(cost=COST)
    lost = event_view(7, "its slots go to big (priority 70 against 50, gains 12 samples/s)").model_copy(
        update={"kind": "vacate", "reason": Reason.PREEMPTED}
    )
    facts = job_page(replace(views(job), events=[lost]), may_control=True, now=NOW).failures
    (preemptions,) = [one for one in facts if one.label == "Preemptions"]
    assert "its slots go to big (priority 70 against 50" in preemptions.note
    asked = lost.model_copy(update={"reason": Reason.USER_REQUEST})
    facts = job_page(replace(views(job), events=[asked]), may_control=True, now=NOW).failures
    assert [one.note for one in facts if one.label == "Preemptions"] == ["not counted as failures"]


def test_page_shows_the_warnings_of_the_job_and_promises_nothing_about_samples_of_lost_gradients() -> None:
    done = job_view().progress.model_copy(
        update={
            "warnings": ["the gradients of 3 <batches> are lost"],
            "gradients_lost": True,
            "epochs_audited": 2,
            "epochs_exact": 2,
        }
    )
    page = job_page(views(job_view(progress=done)), may_control=True, now=NOW)
    shown = Templates().fragment(page.contents()[0])
    assert "the gradients of 3 &lt;batches&gt; are lost" in shown
    (fact,) = [one for one in page.ledger if "exactly once" in one.label]
    assert (fact.label, fact.value) == ("Samples in a step exactly once", "no")
    clean = job_page(views(job_view()), may_control=True, now=NOW)
    assert "warning" not in Templates().fragment(clean.contents()[0])


def test_message_with_a_traceback_is_one_line_in_the_list_and_at_the_head_of_its_page() -> None:
    message = "rank 0 exited with code 2; its last lines:\nusage: x.py [-h]\nx.py: error: no such option"
    job = job_view(JobState.FAILED, allocation={}, size=0, message=message)
    line = "rank 0 exited with code 2; its last lines: … x.py: error: no such option"
    _, listing = jobs_fragments(Page[JobView](items=[job]), {}, NOW, {})
    assert isinstance(listing, Listing)
    assert listing.fragments[0].value.message == line
    page = job_page(views(job, message=message), may_control=True, now=NOW)
    assert page.head.outlook.why == f"digits failed: {line}."


@pytest.mark.parametrize(
    ("allowed", "note"), [(0, "none is retried: retry.user_errors"), (2, "of 2 allowed")]
)
def test_failures_of_the_script_name_the_retries_that_the_job_file_allows(allowed: int, note: str) -> None:
    job = job_view(JobState.FAILED, allocation={}, size=0, user_errors=1)
    retry = job.spec.retry.model_copy(update={"user_errors": allowed})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"retry": retry})})
    page = job_page(views(job), may_control=True, now=NOW)
    shown = [one for one in page.failures if one.label == "Failures of the script"]
    assert [(one.value, one.note) for one in shown] == [("1", note)]
