"""Counts of a process of the service, and the address at which a scheduler serves them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState, Reason
from headway.exposing import Bind
from service.domain.jobs.job import Job
from service.domain.jobs.lifecycle import JobEvent
from service.domain.jobs.records import Event
from service.settings import SettingsError, read_settings
from service.telemetry import Telemetry, collector_of, telemetry, telling
from service.usecases.ports.facts import CommandTaken, Fact, Happened, Preempted

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STORES = {
    "HEADWAY_DATABASE_URL": "postgresql://localhost/headway",
    "HEADWAY_REDIS_URL": "redis://localhost",
    "HEADWAY_STORAGE_URL": "file:///tmp/headway",
}
JOB = Job(
    id="j1",
    spec=JobSpec(name="job", run="python train.py", project="vision"),
    state=JobState.RUNNING,
    reason=Reason.PROGRESSING,
    message="",
    submitted_at=NOW,
    state_since=NOW,
)


def happened(kind: str, **data: object) -> Happened:
    return Happened(JOB, Event(job_id="j1", at=NOW, kind=kind, message="", generation=1, data=data))


def value(made: Telemetry, name: str, **labels: str) -> float:
    return made.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
def made() -> Telemetry:
    return telemetry(lambda: NOW)


def test_a_wait_counts_once_a_job_gets_slots_after_it(made: Telemetry) -> None:
    made.tell(happened(JobEvent.ALLOCATE, waited_s=2.5, slots=1))
    made.tell(happened(JobEvent.ALLOCATE, slots=1))  # it did not wait: its slots had been decided before
    assert value(made, "headway_queue_wait_seconds_count", project="vision") == 1
    assert value(made, "headway_queue_wait_seconds_sum", project="vision") == 2.5


@pytest.mark.parametrize(("before", "after", "direction"), [(1, 4, "grow"), (4, 1, "shrink"), (2, 2, "move")])
def test_resizes_count_by_direction(made: Telemetry, before: int, after: int, direction: str) -> None:
    data = {"from": before, "to": after}
    made.tell(happened(JobEvent.VACATE, **data))
    made.tell(happened(JobEvent.SWITCH, **data, how="live", lost=False, prepare_s=3.0, pause_s=0.1))
    assert value(made, "headway_resizes_total", direction=direction, how="restart") == 1
    assert value(made, "headway_resizes_total", direction=direction, how="live") == 1
    assert value(made, "headway_resize_duration_seconds_sum", how="live", phase="prepare") == 3.0


def test_what_a_loss_costs_is_no_resize(made: Telemetry) -> None:
    made.tell(
        happened(JobEvent.SWITCH, **{"from": 2, "to": 1}, how="live", lost=True, prepare_s=0.0, pause_s=0.4)
    )
    assert value(made, "headway_resize_duration_seconds_sum", how="loss", phase="pause") == 0.4
    assert value(made, "headway_resizes_total", direction="shrink", how="live") == 0


def test_a_job_that_only_has_to_leave_is_preempted_and_not_resized(made: Telemetry) -> None:
    made.tell(happened(JobEvent.VACATE, **{"from": 2, "to": 0}))
    made.tell(Preempted(Reason.PREEMPTED))
    assert value(made, "headway_resizes_total", direction="shrink", how="restart") == 0
    assert value(made, "headway_preemptions_total", cause="PREEMPTED") == 1


def test_a_clock_that_was_set_back_makes_no_negative_wait(made: Telemetry) -> None:
    made.tell(
        CommandTaken(
            command_id="c",
            node_id="n",
            kind="run",
            job_id="j1",
            project="vision",
            reason="SUBMITTED",
            generation=1,
            traceparent=None,
            created_at=NOW,
            acknowledged_at=NOW - timedelta(seconds=5),
        )
    )
    assert value(made, "headway_command_ack_latency_seconds_sum", kind="run") == 0


def test_where_to_answer_is_a_setting() -> None:
    assert read_settings(STORES).metrics_listen is None
    assert read_settings({**STORES, "HEADWAY_METRICS_LISTEN": "9464"}).metrics_listen == Bind(
        "127.0.0.1", 9464
    )
    with pytest.raises(SettingsError, match="HEADWAY_METRICS_LISTEN: 'here' is not an address"):
        read_settings({**STORES, "HEADWAY_METRICS_LISTEN": "here"})


def test_whoever_cannot_take_a_fact_in_spoils_it_for_nobody_else() -> None:
    heard: list[Fact] = []
    told = Preempted(Reason.PREEMPTED)

    def fails(_: Fact) -> None:
        raise KeyError("lost")

    telling([fails, heard.append])(told)
    assert heard == [told]


def test_no_collector_no_traces(made: Telemetry) -> None:
    assert collector_of({}, "api") is None
    assert made.begin_trace("j1", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01") is None
    made.close()
