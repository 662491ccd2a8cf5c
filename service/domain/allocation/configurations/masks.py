"""Masks of the configurations that specs and shapes allow, regardless of speed and price, and of those measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.contract.values.devices import slots_by_kind
from headway.contract.values.topology import SLOW_LINK, level_number
from service.domain.allocation.configurations.configurations import Columns
from service.domain.allocation.configurations.scope import RoundScope
from service.domain.allocation.configurations.shapes import offered
from service.domain.jobs.job import Job, class_of
from service.domain.perf.learned import batch_of, rate_of
from service.domain.perf.tables import Observed
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import BoolArray


def allowed_by_spec(scope: RoundScope) -> BoolArray:
    """Return the configurations (J, C) in pools that serve the job, at sizes that it may have there.

    Of the columns with private slots, a job may only have those that match its own private slots.
    """
    columns = scope.columns
    uses, slots = columns.parts > 0, columns.configurations.slots
    mask = np.zeros((len(scope.jobs), len(slots)), dtype=np.bool_)
    shared = (columns.private == 0).all(axis=1)
    known: dict[object, BoolArray] = {}
    for row, (job, holding) in enumerate(zip(scope.jobs, scope.holdings.values(), strict=True)):
        image = job.spec.image is not None
        key = (
            job.spec.elastic,
            job.spec.parallel,
            job.pinned_size,
            job.spec.resources.devices,
            job.spec.market,
            image,
        )
        if key not in known:
            closed = np.array([not pool.serves(job.spec) for pool in columns.pools], dtype=np.bool_)
            known[key] = ~(uses & closed).any(axis=1) & np.isin(slots, job.sizes) & _mixes(job, columns)
        own = shared
        if holding.private_by_pool:
            private = np.where(uses, columns.private_of(holding), 0)
            own = (columns.private == private).all(axis=1)
        mask[row] = known[key] & own
    fits = _within_capacity(scope)
    for group in columns.groups:
        mask[:, group.columns] = offered(group, mask[:, group.columns], fits[:, group.columns])
    return mask


def _within_capacity(scope: RoundScope) -> BoolArray:
    """Return the configurations (J, C) that each job could have alone.

    The limit of a running job is the capacity of the nodes that take jobs, so that the sizes offered to it do not vary
    while others start or stop. A waiting job starts only on slots that the round may grant.
    """
    parts, capacities = scope.columns.parts, scope.capacities.values()
    slots = np.array([one.slots.sum() for one in capacities], dtype=np.int64)
    room = np.array([one.room.sum() for one in capacities], dtype=np.int64)
    holds = np.array([one.size > 0 for one in scope.holdings.values()], dtype=np.bool_)
    return np.where(holds[:, None], (parts <= slots).all(axis=1), (parts <= room).all(axis=1))


def _mixes(job: Job, columns: Columns) -> BoolArray:
    """Return the columns (C,) of one device kind, and those of two that the job mixes."""
    apart = np.array([pool.kind not in job.spec.elastic.mix for pool in columns.pools], dtype=np.bool_)
    return np.asarray(~(columns.by_kind.mixed & ((columns.parts > 0) & apart).any(axis=1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConfigurations:
    """Measured configurations of the jobs of a round.

    Attributes:
        tried: (J, C) configurations on which the job was measured.
        alike: (J, C) configurations on which jobs of its class were measured.
        observed: measurements of the jobs themselves, and in mixed configurations of their classes.
    """

    tried: BoolArray
    alike: BoolArray
    observed: Observed

    @property
    def known(self) -> BoolArray:
        """Mask (J, C) of the configurations on which the job or its class was measured."""
        return self.tried | self.alike


def measured_configurations(scope: RoundScope) -> MeasuredConfigurations:
    """Return the measured configurations of the jobs."""
    configurations = scope.columns.by_kind
    tried = np.zeros((len(scope.jobs), len(configurations.slots)), dtype=np.bool_)
    entries: list[tuple[float, ...]] = []
    for row, job in enumerate(scope.jobs):
        own = [one for one in scope.snapshot.measurements.get(job.id, ()) if one.believable]
        behind = {(one.device_kind, one.slots) for one in own if one.crossed == SLOW_LINK}
        for measurement in own:
            same = columns_of_size(measurement.device_kind, measurement.slots, configurations)
            tried[row] |= same
            # Spread over more nodes or levels than the column has, the job was slower than it would be in the column.
            exact = same & (configurations.nodes == measurement.nodes)
            if configurations.crosses is not None:
                level = configurations.crosses == level_number(measurement.crossed)
                if scope.holdings[job.id].size and (measurement.device_kind, measurement.slots) not in behind:
                    # A mark alone changes no running job: it counts as it was until its steps there are measured.
                    level |= configurations.crosses == level_number(SLOW_LINK)
                exact &= level
            entries += (
                (row, column, rate_of(measurement), batch_of(measurement), measurement.steps)
                for column in np.flatnonzero(exact).tolist()
            )
        # Measurements of its class reach a job by the models of its kinds, but those of mixes fit no model.
        entries += (
            (row, column, rate_of(one), batch_of(one), one.steps)
            for one in scope.snapshot.class_measurements.get(class_of(job.spec), ())
            if ":" in one.device_kind and one.believable
            for column in np.flatnonzero(
                columns_of_size(one.device_kind, one.slots, configurations) & ~tried[row]
            ).tolist()
        )
    table = np.array(entries, dtype=np.float64).reshape(len(entries), 5)
    observed = Observed(
        job=table[:, 0].astype(np.int64),
        column=table[:, 1].astype(np.int64),
        samples_per_s=table[:, 2],
        global_batch=table[:, 3],
        steps=table[:, 4],
    )
    return MeasuredConfigurations(tried=tried, alike=_tried_by_class(scope), observed=observed)


def columns_of_size(kind: str, slots: int, configurations: Configurations) -> BoolArray:
    """Return the mask (C,) of the configurations of this kind and size; `kind` may be a mix (`mix_name`)."""
    wanted = slots_by_kind(kind, slots)
    if not wanted.keys() <= set(configurations.kinds):
        return np.zeros(len(configurations.slots), dtype=np.bool_)
    if configurations.parts is not None:
        parts = [wanted.get(one, 0) for one in configurations.kinds]
        return np.asarray((configurations.parts == parts).all(axis=1))
    alone = len(wanted) == 1
    of_kind = configurations.kind == (configurations.kinds.index(kind) if alone else -1)
    return np.asarray(of_kind & (configurations.slots == slots))


def _tried_by_class(scope: RoundScope) -> BoolArray:
    configurations = scope.columns.by_kind
    nowhere = np.zeros(len(configurations.slots), dtype=np.bool_)
    of_class = {name: nowhere.copy() for name in scope.snapshot.class_measurements}
    for name, measurements in scope.snapshot.class_measurements.items():
        for kind, slots in {(one.device_kind, one.slots) for one in measurements if one.believable}:
            of_class[name] |= columns_of_size(kind, slots, configurations)
    rows = [of_class.get(class_of(job.spec), nowhere) for job in scope.jobs]
    return np.array(rows, dtype=np.bool_).reshape(len(rows), len(nowhere))
