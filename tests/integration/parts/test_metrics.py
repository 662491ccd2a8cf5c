"""The agent's metrics, through a real listener, read as Prometheus reads them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.contract.agents import (
    Holding,
    RankExited,
    RankMessage,
    RanksHung,
    RanksStarted,
    Released,
    SlotInfo,
    StartFailed,
    StopCommand,
)
from headway.contract.health import DeviceFault, DeviceHealth, FaultCause
from headway.errors import HeadwayError
from headway.exposing import Bind, Listener, listen
from worker_agent.host.folders import StateFolder, boot_s, write_json
from worker_agent.telemetry.facts import CommandHandled, CommandRead, EntryQueued, ReportSent, StateSources
from worker_agent.telemetry.metrics import Counts, agent_registry
from worker_agent.telemetry.setup import RememberedHealth, WatchedLogs

HERE = Bind("127.0.0.1", 0)
SLOTS = [
    SlotInfo(
        index=0,
        device_kind="h100",
        uuid="GPU-1",
        memory_bytes=80,
        health=DeviceHealth(temperature_c=61, memory_used_bytes=8, ecc_uncorrected=0),
    ),
    SlotInfo(index=1, device_kind="h100", uuid="GPU-2"),
]
COUNTED = {"epoch": 0, "total_samples": None, "step_s_squares": 0.1, "local_batch": 32, "accumulation": 1}
HEAD: dict[str, Any] = {
    "sequence": 1,
    "job_id": "j1",
    "generation": 2,
    "at": datetime(2026, 1, 1, tzinfo=UTC),
}


class Host:
    """An agent's metrics, and what they look at."""

    def __init__(self, folder: Path) -> None:
        self.state = StateFolder(folder)
        self.holding: list[Holding] = []
        self.counts: Counts
        seen = StateSources(
            slots=lambda: SLOTS, holding=lambda: self.holding, waiting=lambda: 3, state=self.state
        )
        self.registry, self.counts = agent_registry(seen)
        self.listener: Listener = listen(HERE, self.registry)

    def close(self) -> None:
        self.listener.close()

    def run(self, job_id: str, slots: dict[int, int], *, ended: frozenset[int] = frozenset()) -> None:
        """A run whose ranks have these slots."""
        folder = self.state.job(job_id).run(2)
        folder.control.mkdir(parents=True)
        write_json(folder.command, {"ranks": [{"rank": rank, "slot": slot} for rank, slot in slots.items()]})
        write_json(folder.notes, {"slots": sorted(slots.values())})
        for rank in slots:
            folder.pid(rank).parent.mkdir(parents=True, exist_ok=True)
            folder.pid(rank).write_text("1")
            if rank in ended:
                write_json(folder.exit(rank), {"exit_code": 0})
        self.holding.append(Holding(job_id=job_id, generation=2))

    def said(self, **message: Any) -> None:
        fields = {"rank": 0, "generation": 2, "at_s": 1.0, **message}
        self.counts.receive(EntryQueued(RankMessage(**HEAD, rank=0, message=fields)))

    def read(self) -> dict[str, float]:
        """Every sample, as `name{label="value",...}`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.listener.port}/metrics", timeout=30) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        assert all(one.documentation for one in families)
        return {
            one.name + json.dumps(one.labels, sort_keys=True): one.value
            for family in families
            for one in family.samples
        }


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with closing(Host(tmp_path)) as made:
        yield made


def sample(samples: dict[str, float], name: str, **labels: str) -> float | None:
    return samples.get(f"headway_agent_{name}" + json.dumps(labels, sort_keys=True))


def test_slots_ranks_and_devices(host: Host) -> None:
    host.run("j1", {0: 0, 1: 1}, ended=frozenset({1}))
    read = host.read()
    assert sample(read, "slots", device_kind="h100", state="held", health="answers") == 1
    assert sample(read, "slots", device_kind="h100", state="held", health="silent") == 1
    assert sample(read, "ranks") == 1
    assert sample(read, "device_temperature_celsius", slot="0", device_kind="h100") == 61
    assert sample(read, "device_temperature_celsius", slot="1", device_kind="h100") is None
    assert sample(read, "device_memory_used_bytes", slot="0", device_kind="h100") == 8
    assert sample(read, "outbox_entries") == 3
    assert (sample(read, "disk_free_bytes") or 0) > 0
    assert read["process_start_time_seconds{}"] > 0


def test_reports_and_the_lease_that_they_bring(host: Host) -> None:
    read = host.read()
    assert (sample(read, "report_age_seconds"), sample(read, "lease_remaining_seconds")) == (-1, 0)
    host.counts.receive(ReportSent(None))
    host.counts.receive(ReportSent(boot_s() + 300))
    read = host.read()
    assert sample(read, "reports_total", outcome="failed") == 1
    assert sample(read, "reports_total", outcome="accepted") == 1
    assert 0 <= (sample(read, "report_age_seconds") or 0) < 100
    assert 100 < (sample(read, "lease_remaining_seconds") or 0) <= 300


def test_commands_by_what_became_of_them(host: Host) -> None:
    stop = StopCommand(command_id="c", job_id="j1", generation=2, mode="kill", grace_s=1.0)
    for fact in (
        CommandRead(stop, 0.2),
        CommandHandled(stop, ignored=False),
        CommandHandled(stop, ignored=True),
        CommandRead(None, 1.0),
    ):
        host.counts.receive(fact)
    read = host.read()
    assert sample(read, "commands_total", kind="stop", outcome="taken") == 1
    assert sample(read, "commands_total", kind="stop", outcome="ignored") == 1
    assert sample(read, "commands_total", kind="unknown", outcome="unreadable") == 1
    assert sample(read, "command_age_seconds_count", kind="stop") == 1
    assert sample(read, "command_age_seconds_sum", kind="stop") == 0.2


def test_what_runs_come_to(host: Host) -> None:
    failed = StartFailed(**HEAD, message="no", retryable=False)
    hung = RanksHung(**HEAD, silent_s=600, usual_s=1)
    fault = DeviceFault(sequence=1, at=HEAD["at"], slot=0, cause=FaultCause.XID, code=79)
    exits = [
        RankExited(**HEAD, rank=0, exit_code=0),
        RankExited(**HEAD, rank=1, exit_code=1),
        RankExited(**HEAD, rank=2, exit_code=143, stopped_by_agent=True),
        RankExited(**HEAD, rank=3, exit_code=None, signal=9),
    ]
    for entry in (RanksStarted(**HEAD, how="spawn"), failed, hung, fault, *exits):
        host.counts.receive(EntryQueued(entry))
    read = host.read()
    assert (
        sample(read, "starts_total", outcome="started") == sample(read, "starts_total", outcome="failed") == 1
    )
    assert sample(read, "hung_runs_total") == 1
    assert sample(read, "device_faults_total", cause="xid") == 1
    assert sample(read, "rank_exits_total", outcome="completed") == 1
    assert sample(read, "rank_exits_total", outcome="failed") == 2
    assert sample(read, "rank_exits_total", outcome="stopped") == 1


def test_training_of_a_job_is_told_for_as_long_as_it_has_slots_here(host: Host) -> None:
    host.run("j1", {0: 0})
    for samples in (320, 640):
        host.said(type="progress", samples=samples, steps=10, step_s_sum=2.0, global_batch=32, **COUNTED)
    host.said(type="checkpointed", uri="file:///c", samples=640, size_bytes=1000, save_s=0.1, total_s=2.0)
    host.said(type="checkpoint_failed", samples=960, why="the disk is full")
    host.said(type="first_step", samples=32)
    read = host.read()
    assert sample(read, "checkpoints_total", outcome="completed") == 1
    assert sample(read, "checkpoints_total", outcome="failed") == 1
    assert sample(read, "job_steps_total", job_id="j1") == 20
    assert sample(read, "job_samples_total", job_id="j1") == 640
    assert sample(read, "job_step_seconds_total", job_id="j1") == 4.0
    assert sample(read, "checkpoint_bytes_total") == 1000
    assert read['headway_checkpoint_duration_seconds_sum{"phase": "whole"}'] == 2.0
    host.holding.clear()
    assert not [name for name in host.read() if "j1" in name]


@pytest.mark.parametrize(("slots", "kept"), [(None, False), ([1], True)])
def test_what_a_job_has_trained_goes_with_its_last_slot_though_nobody_reads(
    host: Host, slots: list[int] | None, *, kept: bool
) -> None:
    host.said(type="progress", samples=320, steps=10, step_s_sum=2.0, global_batch=32, **COUNTED)
    host.counts.receive(EntryQueued(Released(**HEAD, slots=slots)))
    assert ("j1" in host.counts.trained(frozenset({"j1"}))) is kept


def test_output_that_was_kept_and_left_out(host: Host) -> None:
    class Sink:
        def ship_log(self, *_: object, **__: object) -> bool:
            """Takes it."""
            return False

    logs = WatchedLogs(Sink(), host.counts.receive)
    logs.ship_log("j1", 1, 0, 500, b"x" * 100, present_rank=0)
    logs.ship_log("j1", 1, 1, 0, b"x" * 10, present_rank=0)
    logs.ship_log("j1", 1, 0, 1600, b"x" * 50, present_rank=0)
    read = host.read()
    assert sample(read, "log_bytes_total", fate="kept") == 160
    assert sample(read, "log_bytes_total", fate="left_out") == 1000


def test_health_is_what_was_read_last() -> None:
    read = iter([[SLOTS[0]]])
    health = RememberedHealth(SLOTS, lambda: next(read))
    assert health.last() == SLOTS
    assert health.read() == [SLOTS[0]] == health.last()


def test_a_place_that_is_taken_is_said(host: Host) -> None:
    with pytest.raises(HeadwayError, match="Cannot listen for metrics at"):
        listen(Bind("127.0.0.1", host.listener.port), host.registry)
