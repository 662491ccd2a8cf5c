"""How much work of each class of jobs arrives, and how fast it is done: learned online, for the budget.

`observe` counts; `observe_jobs` does it from the jobs that a round sees; `expected_widths` is the best that a budget
can do with what was learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from service.domain.arrays import FloatArray
from service.domain.policies.policy import Configurations, RoundInput
from service.domain.policies.speedup import clean_goodput
from service.domain.policies.widths import Widths, column_prices, fixed_widths

MEMORY_S = 7 * 24 * 3600.0
"""What is this old counts for a third (1 / e) of what is new: a week, so that every hour of the week is in it."""

MIN_ARRIVALS = 20
"""Jobs, faded, that must have arrived: rates of fewer are more than a fifth wrong by chance."""
_FORGOTTEN = 1e-3
"""Jobs: a class that has faded to less is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLoad:
    """Faded counts of one class: jobs that arrived, jobs whose size is known, and their work in reference samples.
    `rates`: reference samples per second by configuration, as last seen.
    """

    arrived: float = 0.0
    sized: float = 0.0
    samples: float = 0.0
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassStatistics:
    """What is known of arrivals, by the name of a class. `observed_s` fades like the counts, so that rates are
    unbiased from the start. `sized_jobs` are the jobs of the last round whose size has been counted. Numbers and names
    only: `dataclasses.asdict` is its JSON, and `from_json` the way back.
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
    """The statistics after `elapsed_s` more seconds.

    `arrived` has the class of every job that was submitted in them; `sizes` the class and size, in reference samples,
    of every job whose size became known: at its submit where the job says it, at its end otherwise. A size that is no
    positive number does not count.
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


def observe_jobs(
    statistics: ClassStatistics,
    given: RoundInput,
    *,
    elapsed_s: float,
    job_ids: Sequence[str],
    classes: Sequence[str],
    samples: FloatArray,
) -> ClassStatistics:
    """The statistics after a round that sees these jobs, `elapsed_s` seconds after the one before.

    `job_ids`, `classes` and `samples`, the size of the whole job or NaN, are in the order of `given`. Jobs younger
    than the round before have arrived since.
    """
    jobs = list(zip(job_ids, classes, samples.tolist(), given.age_s.tolist(), strict=True))
    counted = set(statistics.sized_jobs)
    observed = observe(
        statistics,
        elapsed_s=elapsed_s,
        arrived=[name for _, name, _, age_s in jobs if age_s < elapsed_s],
        sizes=[(name, size) for job_id, name, size, _ in jobs if size > 0 and job_id not in counted],
    )
    names, class_of = np.unique(np.array(classes, dtype=np.str_), return_inverse=True)
    rate, keys = clean_goodput(given), configuration_keys(given.configurations)
    seen = dict(observed.classes)
    for index, name in enumerate(names.tolist()):
        of_class = rate[class_of == index]
        runs = (of_class > 0).any(axis=0)
        mean = of_class.sum(axis=0) / np.maximum((of_class > 0).sum(axis=0), 1)
        news = {keys[column]: float(mean[column]) for column in np.flatnonzero(runs)}
        one = seen.get(name, ClassLoad())
        seen[name] = replace(one, rates={**one.rates, **news})
    sized_jobs = [job_id for job_id, _, size, _ in jobs if size > 0]
    return replace(observed, classes=seen, sized_jobs=sized_jobs)


def expected_widths(
    statistics: ClassStatistics, configurations: Configurations, *, budget_usd_per_h: float
) -> Widths | None:
    """The best widths for the loads and rates that were learned, over these configurations; `Widths.mixed_class`
    indexes the classes in the order of their names. None while too little has arrived to tell loads from chance.
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
    """(C,) a name for each column that stays while columns come and go."""
    kinds = [configurations.kinds[kind] for kind in configurations.kind]
    columns = zip(kinds, configurations.slots, configurations.nodes, strict=True)
    return [f"{kind}/{slots}/{nodes}" for kind, slots, nodes in columns]


def from_json(kept: Mapping[str, Any]) -> ClassStatistics:
    """What `dataclasses.asdict` made of statistics; none of a dictionary that is empty. What another version kept beside
    it is left out.
    """
    classes = {name: ClassLoad(**_known(ClassLoad, one)) for name, one in kept.get("classes", {}).items()}
    return ClassStatistics(**{**_known(ClassStatistics, kept), "classes": classes})


def _known(kind: type[ClassLoad | ClassStatistics], kept: Mapping[str, Any]) -> dict[str, Any]:
    return {one.name: kept[one.name] for one in fields(kind) if one.name in kept}


def loads(statistics: ClassStatistics, names: Sequence[str]) -> FloatArray:
    """(I,) reference samples per second that arrive in each of these classes: arrival rate times mean size.

    NaN for a class of which no size is known yet. It is what `fixed_widths` takes.
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
