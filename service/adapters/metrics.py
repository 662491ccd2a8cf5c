"""Counters and histograms of the events of this process, for monitoring.

The sum over all processes is the total of the service.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from headway.contract.standstills import Standstill
from headway.contract.views.decisions import RoundView
from service.domain.jobs.lifecycle import JobEvent
from service.domain.jobs.records import Event
from service.usecases.ports.facts import CommandTaken, Decided, Fact, Happened, PolicyReplaced, Preempted

_ROUND_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_GAP = (0.0, 1e-4, 1e-3, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
_ACK_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_PAUSE_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0)
_STOOD_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_WAIT_S = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0)


def process_registry() -> CollectorRegistry:
    """Return a registry of this process's memory, processor time, open files and garbage collection."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class FactMetrics:
    """Metrics derived from facts (`service.usecases.ports.facts`).

    No label names a job, because a label value stays in memory for as long as the process lives.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._round = _histogram(
            registry,
            "headway_scheduling_cycle_duration_seconds",
            "A scheduling round, from the snapshot to the record.",
            _ROUND_S,
        )
        self._gap = _histogram(
            registry,
            "headway_scheduling_cycle_gap_ratio",
            "Optimality gap of a round's choice.",
            _GAP,
        )
        self._status = Counter(
            "headway_solver_status",
            "Rounds, by the solver's status: optimal, within_gap or limit.",
            ("status",),
            registry=registry,
        )
        self._policy_failures = Counter(
            "headway_policy_failures",
            "Rounds that the default policy decided because the chosen one failed, by the policy that failed.",
            ("policy",),
            registry=registry,
        )
        self._wait = _histogram(
            registry,
            "headway_queue_wait_seconds",
            "Time that a job waited in the queue until it got slots.",
            _WAIT_S,
            "project",
        )
        self._resizes = Counter(
            "headway_resizes",
            "Completed changes of a job's slots, by direction (grow, shrink, move) and by method (live, restart).",
            ("direction", "how"),
            registry=registry,
        )
        self._pause = _histogram(
            registry,
            "headway_resize_duration_seconds",
            "Duration of a change of a job's slots, by method and phase: `prepare` until the switch, while training continues;"
            " `pause` while training stands still.",
            _PAUSE_S,
            "how",
            "phase",
        )
        self._preemptions = Counter(
            "headway_preemptions",
            "Jobs that were preempted and returned to the queue, by cause.",
            ("cause",),
            registry=registry,
        )
        self._acknowledged = _histogram(
            registry,
            "headway_command_ack_latency_seconds",
            "Time from the creation of a command to an agent until its acknowledgement, by kind.",
            _ACK_S,
            "kind",
        )

    def hear(self, fact: Fact) -> None:
        """Update the metrics that the fact concerns."""
        match fact:
            case CommandTaken():
                took_s = (fact.acknowledged_at - fact.created_at).total_seconds()
                self._acknowledged.labels(fact.kind).observe(max(0.0, took_s))
            case Decided():
                self._decided(fact.round)
            case PolicyReplaced():
                self._policy_failures.labels(fact.policy).inc()
            case Preempted():
                self._preemptions.labels(str(fact.cause)).inc()
            case Happened():
                self._happened(fact.event, fact.job.spec.project)

    def _decided(self, round_: RoundView) -> None:
        self._round.observe(round_.took_s)
        self._gap.observe(round_.gap)
        self._status.labels(round_.status).inc()

    def _happened(self, event: Event, project: str) -> None:
        data = event.data
        match event.kind:
            case JobEvent.ALLOCATE if "waited_s" in data:
                self._wait.labels(project).observe(data["waited_s"])
            case JobEvent.VACATE if data.get("to"):
                self._resizes.labels(_direction(data["from"], data["to"]), "restart").inc()
            case JobEvent.SWITCH:
                how = "loss" if data["lost"] else "restart" if data["how"] == "checkpoint" else "live"
                if how != "loss":
                    self._resizes.labels(_direction(data["from"], data["to"]), how).inc()
                    self._pause.labels(how, "prepare").observe(data["prepare_s"])
                self._pause.labels(how, "pause").observe(data["pause_s"])
            case "first_step" if "stood_s" in data:
                self._pause.labels("restart", "pause").observe(data["stood_s"])


class StandstillMetrics:
    """Metric of the standstills of this process's main loop. Any thread may call it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._stood = _histogram(
            registry,
            "headway_loop_standstill_seconds",
            "Periods over 0.1 s in which this process's main loop executed nothing else, through its own fault.",
            _STOOD_S,
        )

    def hear(self, standstill: Standstill) -> None:
        """Count a standstill of this process, with its duration."""
        self._stood.observe(standstill.stood_s)


def _direction(before: int, after: int) -> str:
    return "grow" if after > before else "shrink" if after < before else "move"


def _histogram(
    registry: CollectorRegistry, name: str, text: str, buckets: tuple[float, ...], *labels: str
) -> Histogram:
    return Histogram(name, text, labels, buckets=buckets, registry=registry)
