"""Two sentences for somebody who has never seen a job: why it waits or what it does, and what it will cost."""

from __future__ import annotations

from dataclasses import dataclass

from headway.contract.decisions import ExplanationView
from headway.contract.forecasts import ConfigurationForecast, ForecastView, Mark
from headway.contract.jobs import JobState, JobView
from service.console.marks import has_ended, words_of_job
from service.console.text import duration, plural, usd


@dataclass(frozen=True, slots=True)
class Outlook:
    """`why` says why the job is as it is, `cost` what it will cost and when it ends."""

    why: str
    cost: str


def outlook_of(job: JobView, explanation: ExplanationView, forecast: ForecastView) -> Outlook:
    """The two sentences."""
    return Outlook(_why(job, explanation), _cost(job, forecast))


def _why(job: JobView, explanation: ExplanationView) -> str:
    message = explanation.message or job.message
    return f"{job.name} {words_of_job(job.state)}: {message.rstrip('.')}."


def _cost(job: JobView, forecast: ForecastView) -> str:
    spent = usd(job.cost.usd) if job.cost is not None else None
    if has_ended(job):
        return f"It has cost {spent}." if spent else "Nothing was charged for it."
    chosen = _chosen(forecast)
    if chosen is None:
        begun = f"It has cost {spent} so far. " if spent else ""
        return f"{begun}No size of it fits any node of the cluster, so there is nothing to foretell."
    place = f"on {plural(chosen.slots, f'{chosen.device_kind} slot')}"
    rate = (
        f"{usd(chosen.usd_per_h)} an hour" if chosen.usd_per_h else "nothing, since these slots have no price"
    )
    runs = Mark.PRESENT in chosen.marks and job.state is not JobState.PENDING
    if chosen.time_s is None:
        begin = f"It has cost {spent} so far, and costs" if spent and runs else "It costs"
        return f"{begin} {rate} {place}; when it ends is not known yet ({forecast.work.reason})."
    if runs:
        begin = f"It has cost {spent or '$0.00'} so far, and will cost"
        return f"{begin} about {_money(chosen)} more, ending in about {_time(chosen)} {place}."
    begin = f"It has cost {spent} so far. Once it goes on" if spent else "Once it starts"
    return f"{begin} {place}, it takes about {_time(chosen)} and costs about {_money(chosen)}."


def _chosen(forecast: ForecastView) -> ConfigurationForecast | None:
    """What it has; else the smallest that it could have."""
    for mark in (Mark.PRESENT, Mark.SMALLEST):
        for one in forecast.configurations:
            if mark in one.marks:
                return one
    return min(forecast.configurations, key=lambda one: one.slots, default=None)


def _time(one: ConfigurationForecast) -> str:
    most = one.time_p90_s
    if most is None or duration(most) == duration(one.time_s):
        return duration(one.time_s)
    return f"{duration(one.time_s)} (with 90 % at most {duration(most)})"


def _money(one: ConfigurationForecast) -> str:
    most = one.cost_p90_usd
    if most is None or usd(most) == usd(one.cost_usd):
        return usd(one.cost_usd)
    return f"{usd(one.cost_usd)} (at most {usd(most)})"
