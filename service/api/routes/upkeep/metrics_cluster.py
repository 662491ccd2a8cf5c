"""Metrics of jobs, hosts and scheduling rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric

from headway.contract.agents import NodeState
from service.usecases.ports.upkeep import ClusterFigures

Labels = TypeVar("Labels", bound=tuple[str, ...])


def cluster_metrics(now: ClusterFigures) -> Iterator[Metric]:
    """Yield gauges of the cluster. Every API replica reports the same values, so use one of them, not their sum."""
    yield _by("headway_jobs", "Jobs that have not ended.", ("state", "reason", "project"), now.jobs)
    text = "Waiting time of the pending job that has waited longest."
    yield GaugeMetricFamily("headway_queue_oldest_seconds", text, value=now.oldest_waiting_s)
    yield from _hosts(now)
    yield from _rounds(now)


def _hosts(now: ClusterFigures) -> Iterator[Metric]:
    nodes = {(state.value,): now.nodes.get(state, 0) for state in NodeState}
    yield _by("headway_agents", "Hosts, by the state of their node.", ("state",), nodes)
    text = "Longest time since the last heartbeat of a host that is not lost."
    yield GaugeMetricFamily("headway_agent_heartbeat_age_seconds", text, value=now.silent_s)
    labels = ("device_kind", "market")
    slots = {key: slots for key, (slots, _) in now.slots.items()}
    yield _by("headway_slots", "Slots of hosts that are not lost.", labels, slots)
    held = {key: held for key, (_, held) in now.slots.items()}
    yield _by("headway_slots_held", "Slots that jobs hold.", labels, held)
    text = "Commands that no agent has acknowledged yet."
    yield GaugeMetricFamily("headway_commands_waiting", text, value=now.commands_waiting)
    text = "Age of the oldest unacknowledged command."
    yield GaugeMetricFamily("headway_commands_oldest_seconds", text, value=now.oldest_command_s)


def _rounds(now: ClusterFigures) -> Iterator[Metric]:
    kinds = {("median",): now.round_s[0], ("longest",): now.round_s[1]}
    text = "Duration of rounds of the last hour, from the snapshot to the record."
    yield _by("headway_scheduling_round_seconds", text, ("which",), kinds)
    text = "Optimality gap of the latest round."
    yield GaugeMetricFamily("headway_solver_gap_ratio", text, value=now.gap)
    text = "Changes of jobs by rounds of the last hour."
    yield _by("headway_changes_last_hour", text, ("action", "reason"), now.changes)


def _by(name: str, text: str, labels: tuple[str, ...], values: Mapping[Labels, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        gauge.add_metric(key, value)
    return gauge
