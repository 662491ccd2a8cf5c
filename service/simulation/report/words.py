"""Findings of a simulation as sentences for users: the results first, then the reservations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headway.contract.values.dollars import dollars
from headway.contract.values.quantities import duration
from service.simulation.report.charts import figure
from service.simulation.report.results import Results, mean_figures

_NAMED = 5
"""Largest number of jobs named in a warning."""


@dataclass(frozen=True, slots=True)
class SummaryColumn:
    """Column of the summary: its key among the figures, its heading and its meaning.

    Attributes:
        text: Function that formats a value with its unit.
        less_is_better: False where no direction is better.
    """

    key: str
    heading: str
    meaning: str
    text: Callable[[float], str]
    less_is_better: bool = True


def _hours(value: float) -> str:
    return duration(3600.0 * value)


def _percent(value: float) -> str:
    return f"{figure(100.0 * value)} %"


def _milliseconds(value: float) -> str:
    return duration(value / 1000.0) if value >= 1500 else f"{figure(value)} ms"


FIGURES = (
    SummaryColumn(
        "avg_jct_h",
        "average completion",
        "time from submission to end; a job that did not end counts as if it had ended with the simulation",
        _hours,
    ),
    SummaryColumn("median_jct_h", "median", "median completion time", _hours),
    SummaryColumn("p90_jct_h", "P90", "90th percentile of the completion time", _hours),
    SummaryColumn("p99_jct_h", "P99", "99th percentile of the completion time", _hours),
    SummaryColumn("makespan_h", "makespan", "time from the first submission to the last end", _hours),
    SummaryColumn("queue_h", "queue", "average time from submission to the first slots", _hours),
    SummaryColumn(
        "worst_fairness",
        "worst fairness",
        "largest ratio of completion time to that on a fixed, equal share of the cluster",
        figure,
    ),
    SummaryColumn(
        "unfair_share", "unfair", "share of jobs that took longer than on a fixed, equal share", _percent
    ),
    SummaryColumn("gpu_h", "slot-hours", "slot-hours that all jobs held together", figure),
    SummaryColumn("usd", "cost", "cost of all slots that jobs held", dollars),
    SummaryColumn(
        "utilisation", "in use", "slot-hours held over slot-hours present", _percent, less_is_better=False
    ),
    SummaryColumn("changes", "changes", "average number of changes of a job's slots after its start", figure),
    SummaryColumn("restarts", "restarts", "average number of restarts of a job from a checkpoint", figure),
    SummaryColumn(
        "lost_share",
        "lost",
        "share of the time with slots that starts, pauses and repeated work took",
        _percent,
    ),
    SummaryColumn(
        "decision_p95_ms",
        "decision",
        "95th percentile of the real time of a round's decision",
        _milliseconds,
        less_is_better=False,
    ),
)


def best_of(of: SummaryColumn, means: Mapping[str, Mapping[str, float]]) -> frozenset[str]:
    """Return the policies that are best by a figure; none if all are equal or no direction is better."""
    values = {name: figures[of.key] for name, figures in means.items()}
    if not of.less_is_better or len(values) < 2:
        return frozenset()
    best = min(values.values())
    first = frozenset(name for name, value in values.items() if of.text(value) == of.text(best))
    return first if len(first) < len(values) else frozenset()


def findings(results: Results) -> list[str]:
    """Return the findings, most important first: at least one sentence."""
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
    text = f"Of 100 jobs, 99 were done within {_hours(mine)} under {first}"
    return f"{text}." if _hours(mine) == _hours(least) else f"{text}; under {best} within {_hours(least)}."


def _queue(means: Mapping[str, Mapping[str, float]], first: str) -> str:
    most = max(means, key=lambda name: means[name]["queue_h"])
    mine, longest = means[first]["queue_h"], means[most]["queue_h"]
    text = f"Under {first} a job waited {_hours(mine)} for its first slots"
    return f"{text}; under {most} {_hours(longest)}." if longest > 1.05 * mine else f"{text}."


def _cost(means: Mapping[str, Mapping[str, float]], first: str) -> Iterator[str]:
    cheapest = min(means, key=lambda name: means[name]["usd"])
    mine, least = means[first]["usd"], means[cheapest]["usd"]
    if mine <= 0.0:
        return
    cheaper = f"; {cheapest} was the cheapest, with {dollars(least)}" if mine > 1.005 * least else ""
    yield f"Under {first} the jobs cost {dollars(mine)}{cheaper}."


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
    """Return the reservations that a reader should know."""
    sentences = []
    if results.rejected:
        named = "; ".join(f"{job}: {reason}" for job, reason in results.rejected[:_NAMED])
        rest = len(results.rejected) - _NAMED
        more = f"; and {rest:,} more, listed in summary.json" if rest > 0 else ""
        sentences.append(
            f"{_jobs(len(results.rejected))} can never run here and were left out. {named}{more}."
        )
    for name, runs in results.policies.items():
        unfinished = max(int(np.isinf(one.replay.jobs.end_s).sum()) for one in runs)
        if unfinished:
            sentences.append(
                f"Under {name}, {_jobs(unfinished)} had not ended when the simulation did. The averages count them as "
                "ended at that time, so the true averages are worse."
            )
    return sentences


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
