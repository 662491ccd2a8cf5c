"""Masks of the configurations that specs and shapes allow, regardless of speed and price, and of those measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.domain.allocation.configurations.configurations import Columns
from service.domain.allocation.configurations.eligibility import Holding
from service.domain.allocation.configurations.shapes import offered
from service.domain.cluster.snapshot import Snapshot
from service.domain.jobs.job import Job, class_of
from service.domain.perf.learned import batch_of
from service.domain.perf.tables import Observed
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import BoolArray


def allowed_by_spec(jobs: Sequence[Job], holdings: Mapping[str, Holding], columns: Columns) -> BoolArray:
    """Return the configurations (J, C) that specs and shapes allow: pools that serve the job, at sizes it may
    have there.
    """
    uses, slots = columns.parts > 0, columns.configurations.slots
    mask = np.zeros((len(jobs), len(slots)), dtype=np.bool_)
    everybody = (columns.private == 0).all(axis=1)
    known: dict[object, BoolArray] = {}
    for row, job in enumerate(jobs):
        image = job.spec.image is not None
        key = (job.spec.elastic, job.spec.resources.devices, job.spec.market, job.pinned_size, image)
        if key not in known:
            closed = np.array([not pool.serves(job.spec) for pool in columns.pools], dtype=np.bool_)
            known[key] = ~(uses & closed).any(axis=1) & np.isin(slots, job.sizes)
        own = everybody
        if holdings[job.id].private_by_pool:
            private = np.where(uses, columns.private_of(holdings[job.id]), 0)
            own = (columns.private == private).all(axis=1)
        mask[row] = known[key] & own
    for group in columns.groups:
        mask[:, group.columns] = offered(group, mask[:, group.columns])
    return mask


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConfigurations:
    """Measured configurations of the jobs of a round.

    Attributes:
        tried: (J, C) configurations on which the job was measured.
        alike: (J, C) configurations on which jobs of its class were measured.
        measured: measurements of the jobs themselves.
    """

    tried: BoolArray
    alike: BoolArray
    measured: Observed


def seen_of(jobs: Sequence[Job], columns: Columns, snapshot: Snapshot) -> MeasuredConfigurations:
    """Return the measured configurations of the jobs."""
    configurations = columns.by_kind
    tried = np.zeros((len(jobs), len(configurations.slots)), dtype=np.bool_)
    entries: list[tuple[float, ...]] = []
    for row, job in enumerate(jobs):
        for one in snapshot.measurements.get(job.id, ()):
            if not one.believable:
                continue
            same = columns_of_size(one.device_kind, one.slots, configurations)
            tried[row] |= same
            # Spread over more nodes than the column has, the job was slower than it would be in the column.
            entries += (
                (row, column, one.samples_per_s, batch_of(one), one.steps)
                for column in np.flatnonzero(same & (configurations.nodes == one.nodes)).tolist()
            )
    table = np.array(entries, dtype=np.float64).reshape(len(entries), 5)
    measured = Observed(
        job=table[:, 0].astype(np.int64),
        column=table[:, 1].astype(np.int64),
        samples_per_s=table[:, 2],
        global_batch=table[:, 3],
        steps=table[:, 4],
    )
    return MeasuredConfigurations(
        tried=tried, alike=_tried_by_class(jobs, configurations, snapshot), measured=measured
    )


def columns_of_size(kind: str, slots: int, configurations: Configurations) -> BoolArray:
    """Return the mask (C,) of the configurations of this kind and size."""
    if kind not in configurations.kinds:
        return np.zeros(len(configurations.slots), dtype=np.bool_)
    of_kind = configurations.kind == configurations.kinds.index(kind)
    return np.asarray(of_kind & (configurations.slots == slots))


def _tried_by_class(jobs: Sequence[Job], configurations: Configurations, snapshot: Snapshot) -> BoolArray:
    nowhere = np.zeros(len(configurations.slots), dtype=np.bool_)
    of_class = {name: nowhere.copy() for name in snapshot.class_measurements}
    for name, measurements in snapshot.class_measurements.items():
        for kind, slots in {(one.device_kind, one.slots) for one in measurements if one.believable}:
            of_class[name] |= columns_of_size(kind, slots, configurations)
    rows = [of_class.get(class_of(job.spec), nowhere) for job in jobs]
    return np.array(rows, dtype=np.bool_).reshape(len(jobs), len(nowhere))
