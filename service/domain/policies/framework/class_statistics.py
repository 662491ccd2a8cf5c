"""Online statistics of each class of jobs for the budget: arriving work and speed.

`observe` counts. `observe_jobs` does so from the jobs of a round. `expected_widths` returns the best widths
for a budget with the learned values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from service.domain.policies.framework.policy import Configurations, RoundHistory, RoundInput
from service.domain.policies.framework.speedup import clean_goodput
from service.domain.policies.framework.widths import Widths, column_prices, fixed_widths
from service.domain.shared.arrays import FloatArray

MEMORY_S = 7 * 24 * 3600.0
"""Time constant of the exponential decay, in seconds: a week, so that every hour of the week is covered."""

MIN_ARRIVALS = 20
"""Minimum decayed number of arrived jobs. Rates from fewer jobs are off by more than a fifth by chance."""
_FORGOTTEN = 1e-3
"""Decayed number of jobs below which a class is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLoad:
    """Decayed counts of one class: jobs that arrived, jobs of known size, and their work in reference
    samples.

    `rates` are reference samples per second by configuration, as last measured.
    """

    arrived: float = 0.0
    sized: float = 0.0
    samples: float = 0.0
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassStatistics:
    """Statistics of arrivals by the name of a class.

    `observed_s` decays like the counts, so that rates are unbiased from the start. `sized_jobs` are the jobs
    of the last round whose size has been counted. The fields are numbers and names only: `dataclasses.asdict`
    gives the JSON, and `from_json` reads it.
    """

    observed_s: float = 0.0
    classes: Mapping[str, ClassLoad] = field(default_factory=dict)
    sized_jobs: Sequence[str] = ()


def observe(
    statistics: ClassStatistics,
    *,
    elapsed_s: float,
    arrived: Iterable[str] = (),
    sizes: Iterable[tuple[str, float]] = (),
    memory_s: float = MEMORY_S,
) -> ClassStatistics:
    """Return the statistics after `elapsed_s` more seconds.

    `arrived` has the class of every job submitted in that time. `sizes` has the class and the size, in
    reference samples, of every job whose size became known: at its submission if the job states it, otherwise
    at its end. A size that is not a positive number is ignored.
    """
    elapsed_s = elapsed_s if math.isfinite(elapsed_s) and elapsed_s > 0 else 0.0
    fade = math.exp(-elapsed_s / memory_s)
    classes = {
        name: replace(one, arrived=fade * one.arrived, sized=fade * one.sized, samples=fade * one.samples)
        for name, one in statistics.classes.items()
        if fade * (one.arrived + one.sized) > _FORGOTTEN
    }
    for name in arrived:
        one = classes.get(name, ClassLoad())
        classes[name] = replace(one, arrived=one.arrived + 1.0)
    for name, size in sizes:
        if math.isfinite(size) and size > 0:
            one = classes.get(name, ClassLoad())
            classes[name] = replace(one, sized=one.sized + 1.0, samples=one.samples + size)
    observed_s = fade * statistics.observed_s + memory_s * (1.0 - fade)
    return replace(statistics, observed_s=observed_s, classes=classes)


def observe_jobs(statistics: ClassStatistics, given: RoundInput, history: RoundHistory) -> ClassStatistics:
    """Return the statistics after a round with these jobs. Jobs younger than the previous round count as
    arrivals. Jobs that never stated a size contribute the size that they had at their end.
    """
    elapsed_s, classes = history.elapsed_s, history.classes
    samples, age_s = history.samples.tolist(), given.age_s.tolist()
    jobs = list(zip(history.job_ids, classes, samples, age_s, strict=True))
    counted = set(statistics.sized_jobs)
    observed = observe(
        statistics,
        elapsed_s=elapsed_s,
        arrived=[name for _, name, _, age_s in jobs if age_s < elapsed_s],
        sizes=[
            *((name, size) for job_id, name, size, _ in jobs if size > 0 and job_id not in counted),
            *history.ended,
        ],
    )
    names, class_of = np.unique(np.array(classes, dtype=np.str_), return_inverse=True)
    rate, keys = clean_goodput(given), configuration_keys(given.configurations)
    loads_by_class = dict(observed.classes)
    for index, name in enumerate(names.tolist()):
        of_class = rate[class_of == index]
        runs = (of_class > 0).any(axis=0)
        mean = of_class.sum(axis=0) / np.maximum((of_class > 0).sum(axis=0), 1)
        measured = {keys[column]: float(mean[column]) for column in np.flatnonzero(runs)}
        one = loads_by_class.get(name, ClassLoad())
        loads_by_class[name] = replace(one, rates={**one.rates, **measured})
    sized_jobs = [job_id for job_id, _, size, _ in jobs if size > 0]
    return replace(observed, classes=loads_by_class, sized_jobs=sized_jobs)


def expected_widths(
    statistics: ClassStatistics, configurations: Configurations, *, budget_usd_per_h: float
) -> Widths | None:
    """Return the best widths for the learned loads and rates over these configurations.

    `Widths.mixed_class` indexes the classes in the order of their names. Return None while too few jobs have
    arrived to distinguish loads from chance.
    """
    names = sorted(statistics.classes)
    keys = configuration_keys(configurations)
    if sum(statistics.classes[name].arrived for name in names) < MIN_ARRIVALS:
        return None
    rate = np.array([[statistics.classes[name].rates.get(key, 0.0) for key in keys] for name in names])
    load = loads(statistics, names)
    if not (np.isfinite(load) & (rate > 0).any(axis=1)).any():
        return None
    prices = column_prices(configurations.usd_per_h, configurations.slots)
    return fixed_widths(load, rate, prices, budget_usd_per_h=budget_usd_per_h)


def configuration_keys(configurations: Configurations) -> list[str]:
    """Return a name (C,) for each column that is stable while columns come and go."""
    kinds = [configurations.kinds[kind] for kind in configurations.kind]
    columns = zip(kinds, configurations.slots, configurations.nodes, strict=True)
    return [f"{kind}/{slots}/{nodes}" for kind, slots, nodes in columns]


def from_json(kept: Mapping[str, Any]) -> ClassStatistics:
    """Return the statistics from the JSON of `dataclasses.asdict`; empty ones from an empty mapping.

    Fields that another version added are ignored.
    """
    classes = {name: ClassLoad(**_known(ClassLoad, one)) for name, one in kept.get("classes", {}).items()}
    return ClassStatistics(**{**_known(ClassStatistics, kept), "classes": classes})


def _known(kind: type[ClassLoad | ClassStatistics], kept: Mapping[str, Any]) -> dict[str, Any]:
    return {one.name: kept[one.name] for one in fields(kind) if one.name in kept}


def loads(statistics: ClassStatistics, names: Sequence[str]) -> FloatArray:
    """Return the reference samples per second (I,) that arrive in each of these classes: arrival rate times
    mean size.

    The value is NaN for a class of which no size is known yet. `fixed_widths` takes these loads.
    """
    of_class = [statistics.classes.get(name, ClassLoad()) for name in names]
    return np.array(
        [
            one.arrived / statistics.observed_s * one.samples / one.sized
            if one.sized > 0 and statistics.observed_s > 0
            else np.nan
            for one in of_class
        ]
    )
