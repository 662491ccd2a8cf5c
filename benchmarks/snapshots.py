"""The clusters of `instances` as snapshots of the service: nodes, jobs with their job files, and measurements."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from benchmarks.instances import NODE_SLOTS, Instance
from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec
from headway.contract.values.topology import LEVELS, level_name
from headway.contract.views.jobs import JobProgress, JobState, Reason
from service.domain.cluster.snapshot import Measurement, Node, Served, SlotKey, Snapshot
from service.domain.jobs.job import Job, class_of
from service.domain.perf.levels import reach_at
from service.domain.perf.throughput import step_time
from service.domain.shared.arrays import FloatArray

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
STEPS = 500
"""Steps of each measurement, enough for a reliable one."""
OF_CLASS = 20
"""Maximum number of measurements of a job class in a snapshot."""


def make_snapshot(instance: Instance) -> Snapshot:
    """Return the snapshot of an instance. Jobs that hold slots run and have a measurement there; the others wait."""
    given = instance.given
    jobs = {job.id: job for job in _jobs(instance)}
    step_s = _step_s(instance)
    measured: dict[str, tuple[Measurement, ...]] = {}
    of_class: dict[str, tuple[Measurement, ...]] = {}
    served: dict[str, Served] = {}
    for row, job in enumerate(jobs.values()):
        seconds = dict(zip(given.configurations.kinds, given.served_s[row].tolist(), strict=True))
        served[job.id] = Served(seconds, float(given.served_slot_s[row]))
        if job.allocation:
            measured[job.id] = (_measurement(instance, row, float(step_s[row])),)
            known = of_class.get(class_of(job.spec), ())
            of_class[class_of(job.spec)] = (*known, *measured[job.id])[:OF_CLASS]
    return Snapshot(
        now=NOW,
        nodes={
            node: Node(
                id=node,
                name=node,
                state=NodeState.READY,
                slots=dict.fromkeys(range(NODE_SLOTS), kind),
                labels=dict(zip(LEVELS, pool.paths.get(node, ()), strict=False)),
            )
            for kind, pool in instance.pools.items()
            for node in pool.free
        },
        jobs=jobs,
        held={
            SlotKey(node, slot): job.id
            for job in jobs.values()
            for node, slots in job.allocation.items()
            for slot in slots
        },
        measurements=measured,
        class_measurements=of_class,
        served=served,
    )


def _jobs(instance: Instance) -> list[Job]:
    """Return the jobs in the order of the instance, with job files that allow the same sizes."""
    given, models = instance.given, instance.models
    specs: dict[tuple[object, ...], JobSpec] = {}
    jobs = []
    for row, held in enumerate(instance.held):
        sizes = tuple(np.unique(given.configurations.slots[given.allowed[row]]).tolist())
        batch, weight = int(models.reference_batch[row]), float(given.weight[row])
        key = (sizes, batch, weight)
        if key not in specs:
            specs[key] = _spec(sizes, batch, weight)
        since = NOW - timedelta(seconds=float(given.age_s[row]))
        left = given.remaining[row]
        jobs.append(
            Job(
                id=f"job-{row:06}",
                spec=specs[key].model_copy(update={"name": f"class{given.job_class[row]:02}x-{row}"}),
                state=JobState.RUNNING if held else JobState.PENDING,
                reason=Reason.ALLOCATED if held else Reason.SUBMITTED,
                message="",
                generation=int(given.changes[row]) + 1 if held else 0,
                allocation=held,
                live=bool(held),
                progress=JobProgress(
                    samples=1000,
                    total_samples=int(left) + 1000 if np.isfinite(left) else None,
                    global_batch=batch if held else None,
                    max_global_batch=64 * batch if held else None,
                    pause_s=float(given.change_s[row]) if held else None,
                ),
                submitted_at=since,
                state_since=since,
            )
        )
    return jobs


def _spec(sizes: tuple[int, ...], batch: int, weight: float) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "job",
            "run": "python train.py",
            "elastic": {"min": sizes[0], "max": sizes[-1], "sizes": sizes},
            "batch": {"policy": "adaptive", "global": max(batch, sizes[0]), "max_global": 64 * batch},
            "priority": round(50 + 25 * np.log2(weight)),
        }
    )


def _step_s(instance: Instance) -> FloatArray:
    """Return the true seconds of a step on the slots of each job, with shape (jobs,); arbitrary for a job without slots."""
    configurations, column = instance.given.configurations, np.maximum(instance.given.current, 0)
    slots, rows = configurations.slots[column], np.arange(len(column))
    batch = np.ceil(instance.models.reference_batch / slots)
    seconds, _ = step_time(
        instance.models.throughput[rows, configurations.kind[column]],
        slots=slots,
        nodes=configurations.nodes[column],
        local_batch=batch,
        reach=reach_at(
            instance.models.reach, configurations.crosses, rows, configurations.kind[column], column
        ),
    )
    return seconds


def _measurement(instance: Instance, row: int, step_s: float) -> Measurement:
    configurations, column = instance.given.configurations, int(instance.given.current[row])
    slots, batch = int(configurations.slots[column]), int(instance.models.reference_batch[row])
    return Measurement(
        device_kind=configurations.kinds[int(configurations.kind[column])],
        slots=slots,
        nodes=len(instance.held[row]),
        samples_per_s=batch / step_s,
        steps=STEPS,
        generation=int(instance.given.changes[row]) + 1,
        global_batch=batch,
        local_batch=-(-batch // slots),
        step_s=step_s,
        step_s_spread=0.1 * step_s,
        crossed="" if configurations.crosses is None else level_name(int(configurations.crosses[column])),
        gradient_sqr=1.0,
        gradient_var=float(instance.models.noise_scale[row]),
    )
