"""What a simulation says, in sentences for people: the result first, then what should make them careful."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.simulation.charts import duration, figure
from service.simulation.results import Results, mean_figures

_NAMED = 5
"""Jobs that are named in a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A column of the summary: its key among the figures, its heading and what it means.

    Attributes:
        text: of a value, in a unit that suits another.
        less_is_better: False where neither is.
    """

    key: str
    heading: str
    meaning: str
    text: Callable[[float, float], str]
    less_is_better: bool = True


def _hours(value: float, like: float | None = None) -> str:
    return duration(3600.0 * value, None if like is None else 3600.0 * like)


def _number(value: float, like: float = 0.0) -> str:  # noqa: ARG001 - as all texts of figures
    return figure(value)


def _percent(value: float, like: float = 0.0) -> str:  # noqa: ARG001
    return f"{figure(100.0 * value)} %"


def _dollars(value: float, like: float = 0.0) -> str:  # noqa: ARG001
    return f"${value:,.2f}" if value < 100 else f"${value:,.0f}"


def _milliseconds(value: float, like: float = 0.0) -> str:
    return duration(value / 1000.0) if like >= 1500 else f"{figure(value)} ms"


FIGURES = (
    Figure(
        key="avg_jct_h",
        heading="average completion",
        meaning="from submit to end, over all jobs; one that did not end counts as if it had ended with the simulation",
        text=_hours,
    ),
    Figure(key="median_jct_h", heading="median", meaning="half of the jobs took less", text=_hours),
    Figure(key="p90_jct_h", heading="P90", meaning="nine in ten jobs took less", text=_hours),
    Figure(key="p99_jct_h", heading="P99", meaning="99 in 100 jobs took less", text=_hours),
    Figure(
        key="makespan_h", heading="makespan", meaning="from the first submit to the last end", text=_hours
    ),
    Figure(key="queue_h", heading="queue", meaning="average from submit to the first slots", text=_hours),
    Figure(
        key="worst_fairness",
        heading="worst fairness",
        meaning="completion time over that on a fixed, equal share of the cluster, of the job with most",
        text=_number,
    ),
    Figure(
        key="unfair_share",
        heading="unfair",
        meaning="jobs that took longer than on a fixed, equal share",
        text=_percent,
    ),
    Figure(key="gpu_h", heading="slot-hours", meaning="that all jobs held together", text=_number),
    Figure(key="usd", heading="cost", meaning="of all slots that jobs held", text=_dollars),
    Figure(
        key="utilisation",
        heading="in use",
        meaning="slot-hours held, over those there were",
        text=_percent,
        less_is_better=False,
    ),
    Figure(
        key="changes", heading="changes", meaning="of a job's slots after its start, on average", text=_number
    ),
    Figure(
        key="restarts", heading="restarts", meaning="from a checkpoint, of a job, on average", text=_number
    ),
    Figure(
        key="lost_share",
        heading="lost",
        meaning="of the time that jobs held slots, what starts, pauses and work done twice took",
        text=_percent,
    ),
    Figure(
        key="decision_p95_ms",
        heading="decision",
        meaning="real time of a round's decision, P95",
        text=_milliseconds,
        less_is_better=False,
    ),
)


def best_of(of: Figure, means: Mapping[str, Mapping[str, float]]) -> frozenset[str]:
    """The policies that are best by a figure, none where all are alike or there is no better."""
    values = {name: figures[of.key] for name, figures in means.items()}
    if not of.less_is_better or len(values) < 2:
        return frozenset()
    best = min(values.values())
    first = frozenset(name for name, value in values.items() if of.text(value, best) == of.text(best, best))
    return first if len(first) < len(values) else frozenset()


def findings(results: Results) -> list[str]:
    """The result, most important first: at least one sentence."""
    means = {name: mean_figures(runs) for name, runs in results.policies.items()}
    ranking = sorted(means, key=lambda name: means[name]["avg_jct_h"])
    first = ranking[0]
    return [
        _soonest(means, ranking),
        _tail(means, first),
        _queue(means, first),
        *_cost(means, first),
        _fairness(means, first),
    ]


def _soonest(means: Mapping[str, Mapping[str, float]], ranking: Sequence[str]) -> str:
    first = ranking[0]
    hours = means[first]["avg_jct_h"]
    after = f"after {_hours(hours)} on average"
    alike = [name for name in ranking if means[name]["avg_jct_h"] <= 1.005 * hours]
    others = ranking[len(alike) :]
    if not others:
        who = first if len(ranking) == 1 else f"All policies alike ({', '.join(ranking)})"
        return f"{who} finished jobs {after}, half of them within {_hours(means[first]['median_jct_h'])}."
    against = [f"{_sooner(hours, means[others[0]]['avg_jct_h'])} {others[0]}, the next"]
    if len(others) > 1:
        against.append(f"{_sooner(hours, means[others[-1]]['avg_jct_h'])} {others[-1]}, the last")
    return f"{' and '.join(alike)} finished jobs soonest, {after}: {', and '.join(against)}."


def _sooner(value: float, other: float) -> str:
    return f"{100 * (1.0 - value / other):.0f} % sooner than"


def _tail(means: Mapping[str, Mapping[str, float]], first: str) -> str:
    best = min(means, key=lambda name: means[name]["p99_jct_h"])
    mine, least = means[first]["p99_jct_h"], means[best]["p99_jct_h"]
    said = f"Of 100 jobs, 99 were done within {_hours(mine)} under {first}"
    return f"{said}." if _hours(mine) == _hours(least) else f"{said}; under {best} within {_hours(least)}."


def _queue(means: Mapping[str, Mapping[str, float]], first: str) -> str:
    most = max(means, key=lambda name: means[name]["queue_h"])
    mine, longest = means[first]["queue_h"], means[most]["queue_h"]
    said = f"Under {first} a job waited {_hours(mine)} for its first slots"
    return f"{said}; under {most} {_hours(longest)}." if longest > 1.05 * mine else f"{said}."


def _cost(means: Mapping[str, Mapping[str, float]], first: str) -> Iterator[str]:
    cheapest = min(means, key=lambda name: means[name]["usd"])
    mine, least = means[first]["usd"], means[cheapest]["usd"]
    if mine <= 0.0:
        return
    cheaper = f"; {cheapest} was the cheapest, with {_dollars(least)}" if mine > 1.005 * least else ""
    yield f"Under {first} the jobs cost {_dollars(mine)}{cheaper}."


def _fairness(means: Mapping[str, Mapping[str, float]], first: str) -> str:
    share = means[first]["unfair_share"]
    worst = figure(means[first]["worst_fairness"])
    if share <= 0.0:
        return f"Under {first} no job took longer than it would have on a fixed, equal share of the cluster."
    return (
        f"Under {first} {_percent(share)} of the jobs took longer than they would have on a fixed, equal share of the "
        f"cluster; the worst took {worst} times as long."
    )


def warnings(results: Results) -> list[str]:
    """What should make a reader careful."""
    said = []
    if results.rejected:
        named = "; ".join(f"{job}: {reason}" for job, reason in results.rejected[:_NAMED])
        rest = len(results.rejected) - _NAMED
        more = f"; and {rest:,} more, which summary.json names" if rest > 0 else ""
        said.append(f"{_jobs(len(results.rejected))} can never run here and took no part. {named}{more}.")
    for name, runs in results.policies.items():
        unfinished = max(int(np.isinf(one.replay.jobs.end_s).sum()) for one in runs)
        if unfinished:
            said.append(
                f"Under {name}, {_jobs(unfinished)} had not ended when the simulation did; in the averages they count as "
                "if they had ended then, so that they look better than they are."
            )
    return said


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
