"""Prometheus metrics of the agent, built by `agent_registry`.

`Counts` counts facts as they happen. `StateMetrics` reads the current state at every scrape.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from headway.contract.agents import (
    AnyEntry,
    RankExited,
    RankMessage,
    RanksHung,
    RanksStarted,
    Released,
    SlotInfo,
    StartFailed,
)
from headway.contract.health import DeviceFault
from headway.contract.rank_lines import from_fields
from headway.contract.runtime import Checkpointed, CheckpointFailed, Progress
from headway.contract.standstills import Standstill
from worker_agent.host.folders import boot_s, read_json
from worker_agent.telemetry.facts import (
    CommandHandled,
    CommandRead,
    EntryQueued,
    Fact,
    OutputShipped,
    ReportSent,
    StateSources,
)

_AGE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_STOOD_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_CHECKPOINT_S = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
UNREADABLE = "unreadable"
_COUNTED = frozenset({Progress.TYPE, Checkpointed.TYPE, CheckpointFailed.TYPE})


def agent_registry(sources: StateSources) -> tuple[CollectorRegistry, Counts]:
    """Return the registry with all metrics of an agent, and the receiver of its facts."""
    registry = CollectorRegistry(auto_describe=True)
    counts = Counts(registry)
    registry.register(StateMetrics(sources, counts))
    ProcessCollector(registry=registry)
    return registry, counts


@dataclass(slots=True)
class _Trained:
    """Steps of a job that its rank 0 has reported since this agent started."""

    steps: int = 0
    samples: int = 0
    step_s: float = 0.0


class Counts:
    """Metrics that are counted from facts. Only jobs that hold slots here become label values, see `StateMetrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lock = Lock()
        self._trained: dict[str, _Trained] = {}
        self._accepted_s: float | None = None
        self._lease_until_s: float | None = None
        make = _Maker(registry)
        self._reports = make.counter(
            "reports", "Reports to the service, including heartbeats, by outcome.", "outcome"
        )
        self._commands = make.counter("commands", "Commands, by kind and outcome.", "kind", "outcome")
        self._age = make.histogram(
            "command_age_seconds",
            "Seconds from a command's push to its arrival at the agent, by the clocks of both hosts.",
            _AGE_S,
            "kind",
        )
        self._starts = make.counter(
            "starts", "Starts of runs: started (all ranks have a process) or failed.", "outcome"
        )
        self._exits = make.counter("rank_exits", "Ranks that ended: completed, stopped or failed.", "outcome")
        self._hung = make.counter("hung_runs", "Runs whose ranks hung.")
        self._faults = make.counter("device_faults", "Faults of devices, by cause.", "cause")
        self._checkpoints = make.counter(
            "checkpoints", "Checkpoints that ranks on this host reported: completed or failed.", "outcome"
        )
        self._checkpoint_bytes = make.counter("checkpoint_bytes", "Bytes of completed checkpoints.")
        self._checkpoint_s = Histogram(
            "headway_checkpoint_duration_seconds",
            "Duration of checkpoints that ranks on this host reported: `blocking` while training paused, `whole` until completion.",
            ("phase",),
            buckets=_CHECKPOINT_S,
            registry=registry,
        )
        self._stood = make.histogram(
            "loop_standstill_seconds",
            "Periods over 0.1 s in which the agent's main loop executed nothing else, through its own fault.",
            _STOOD_S,
        )
        self._log_bytes = make.counter(
            "log_bytes", "Bytes of rank output: kept (shipped to the service) or left_out.", "fate"
        )

    def receive(self, fact: Fact) -> None:
        """Update the counters for a fact."""
        match fact:
            case EntryQueued():
                self._count_entry(fact.entry)
            case ReportSent():
                self._reports.labels("failed" if fact.lease_until_s is None else "accepted").inc()
                if fact.lease_until_s is not None:
                    self._accepted_s, self._lease_until_s = boot_s(), fact.lease_until_s
            case CommandRead(command=None):
                self._commands.labels("unknown", UNREADABLE).inc()
            case CommandRead() if fact.command is not None:
                self._age.labels(fact.command.kind).observe(fact.age_s)
            case CommandHandled():
                self._commands.labels(fact.command.kind, "ignored" if fact.ignored else "taken").inc()
            case Standstill():
                self._stood.observe(fact.stood_s)
            case OutputShipped():
                self._log_bytes.labels("kept").inc(fact.kept_bytes)
                self._log_bytes.labels("left_out").inc(fact.left_out_bytes)

    def since_accepted_s(self) -> float | None:
        """Return the seconds since the last accepted report; None before the first."""
        return None if self._accepted_s is None else boot_s() - self._accepted_s

    def lease_left_s(self) -> float | None:
        """Return the seconds until the lease of the ranks expires; None before the first report."""
        return None if self._lease_until_s is None else self._lease_until_s - boot_s()

    def trained(self, jobs: frozenset[str]) -> Mapping[str, tuple[int, int, float]]:
        """Return steps, samples and step seconds of these jobs, and forget all other jobs."""
        with self._lock:
            self._trained = {job: one for job, one in self._trained.items() if job in jobs}
            return {job: (one.steps, one.samples, one.step_s) for job, one in self._trained.items()}

    def _count_entry(self, entry: AnyEntry) -> None:
        match entry:
            case RankMessage():
                self._count_message(entry)
            case RanksStarted():
                self._starts.labels("started").inc()
            case StartFailed():
                self._starts.labels("failed").inc()
            case RankExited():
                ended = "completed" if entry.completed else "stopped" if entry.stopped_by_agent else ""
                self._exits.labels(ended or ("failed" if entry.exit_code != 0 else "completed")).inc()
            case Released(slots=None):
                with self._lock:  # the metrics may never be scraped
                    self._trained.pop(entry.job_id, None)
            case RanksHung():
                self._hung.inc()
            case DeviceFault():
                self._faults.labels(entry.cause).inc()

    def _count_message(self, entry: RankMessage) -> None:
        if entry.message.get("type") not in _COUNTED:
            return
        match from_fields(entry.message):
            case Progress() as progress:
                with self._lock:
                    trained = self._trained.setdefault(entry.job_id, _Trained())
                    trained.steps += progress.steps
                    trained.samples += progress.steps * progress.global_batch
                    trained.step_s += progress.step_s_sum
            case Checkpointed() as saved:
                self._checkpoints.labels("completed").inc()
                self._checkpoint_bytes.inc(saved.size_bytes)
                self._checkpoint_s.labels("blocking").observe(saved.save_s)
                self._checkpoint_s.labels("whole").observe(saved.total_s)
            case CheckpointFailed():
                self._checkpoints.labels("failed").inc()


class _Maker:
    """Factory of metrics with a common prefix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Create a counter; its name in the text format ends with `_total`."""
        return Counter(f"headway_agent_{name}", text, labels, registry=self._registry)

    def histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        """Create a histogram with these buckets."""
        return Histogram(f"headway_agent_{name}", text, labels, buckets=buckets, registry=self._registry)


class StateMetrics(Collector):
    """Metrics of the current state. Label values are jobs that hold slots here, never more than slots."""

    def __init__(self, sources: StateSources, counts: Counts) -> None:
        self._sources = sources
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for a scrape by Prometheus."""
        held, ranks = self._held()
        yield from self._slots(held)
        yield _gauge("ranks", "Running processes of ranks on this host.", ranks)
        yield _gauge(
            "outbox_entries", "Report entries that the service does not have yet.", self._sources.waiting()
        )
        since_s, left_s = self._counts.since_accepted_s(), self._counts.lease_left_s()
        text = "Seconds since the service last accepted a report; -1 before the first."
        yield _gauge("report_age_seconds", text, -1.0 if since_s is None else since_s)
        text = "Seconds that ranks may continue without another accepted report; 0 before the first."
        yield _gauge("lease_remaining_seconds", text, 0.0 if left_s is None else left_s)
        yield from self._disk(self._sources.state.path)
        yield from self._trained()

    def _held(self) -> tuple[frozenset[int], int]:
        """Return slots that runs hold, and the number of their processes, from the files of agent and launcher."""
        slots: set[int] = set()
        ranks = 0
        for one in self._sources.holding():
            folder = self._sources.state.job(one.job_id).run(one.generation)
            command: Any = read_json(folder.command) or {}
            notes: Any = read_json(folder.notes) or {}
            started = [rank["rank"] for rank in command.get("ranks", ())]
            slots.update(notes.get("slots", [rank["slot"] for rank in command.get("ranks", ())]))
            ranks += sum(folder.pid(rank).exists() and not folder.exit(rank).exists() for rank in started)
        return frozenset(slots), ranks

    def _slots(self, held: frozenset[int]) -> Iterator[Metric]:
        slots = self._sources.slots()
        of_host = GaugeMetricFamily(
            "headway_agent_slots",
            "Slots of this host, by device kind, state (held or free) and health of the device.",
            labels=("device_kind", "state", "health"),
        )
        counted: dict[tuple[str, str, str], int] = {}
        for slot in slots:
            silent = slot.uuid is not None and slot.health.memory_used_bytes is None
            key = (
                slot.device_kind,
                "held" if slot.index in held else "free",
                "silent" if silent else "answers",
            )
            counted[key] = counted.get(key, 0) + 1
        for key, count in sorted(counted.items()):
            of_host.add_metric(key, count)
        yield of_host
        readings: Mapping[str, tuple[str, Callable[[SlotInfo], float | None]]] = {
            "device_temperature_celsius": ("Temperature of a GPU.", lambda slot: slot.health.temperature_c),
            "device_memory_used_bytes": ("Used memory of a GPU.", lambda slot: slot.health.memory_used_bytes),
            "device_memory_bytes": ("Total memory of a GPU.", lambda slot: slot.memory_bytes),
            "device_ecc_errors": (
                "Uncorrected memory errors of a GPU since its driver was loaded.",
                lambda slot: slot.health.ecc_uncorrected,
            ),
        }
        for name, (text, value_of) in readings.items():
            gauge = GaugeMetricFamily(f"headway_agent_{name}", text, labels=("slot", "device_kind"))
            for slot in slots:
                value = value_of(slot) if slot.uuid is not None else None
                if value is not None:
                    gauge.add_metric((str(slot.index), slot.device_kind), value)
            yield gauge

    def _disk(self, folder: Path) -> Iterator[Metric]:
        disk = shutil.disk_usage(folder)
        yield _gauge("disk_free_bytes", "Free bytes on the disk with the agent's state folder.", disk.free)
        yield _gauge("disk_bytes", "Size of the disk with the agent's state folder.", disk.total)

    def _trained(self) -> Iterator[Metric]:
        jobs = frozenset(one.job_id for one in self._sources.holding())
        known = self._counts.trained(jobs)
        texts = {
            "job_steps": "Optimizer steps of a job whose rank 0 is on this host.",
            "job_samples": "Samples in these steps.",
            "job_step_seconds": "Seconds in these steps; the rate is the share of time spent on training.",
        }
        for column, (name, text) in enumerate(texts.items()):
            counter = CounterMetricFamily(f"headway_agent_{name}", text, labels=("job_id",))
            for job_id, values in sorted(known.items()):
                counter.add_metric((job_id,), values[column])
            yield counter


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"headway_agent_{name}", text, value=value)
