"""Two sentences that summarise a job: its state with the reason, and its cost."""

from __future__ import annotations

from dataclasses import dataclass

from headway.contract.values.text import brief
from headway.contract.views.forecasts import ConfigurationForecast, ForecastView, Mark
from headway.contract.views.jobs import JobState, JobView
from service.console.html.badges import has_ended, words_of_job
from service.console.html.text import duration, plural, usd


@dataclass(frozen=True, slots=True)
class Outlook:
    """The reason for the state of a job, and its cost and end."""

    why: str
    cost: str


def outlook_of(job: JobView, present: str, forecast: ForecastView) -> Outlook:
    """Return the two sentences. `present` is the reason for the job's present size."""
    return Outlook(
        f"{job.name} {words_of_job(job.state)}: {brief(present).rstrip('.')}.",
        _cost(job, forecast),
    )


def _cost(job: JobView, forecast: ForecastView) -> str:
    spent = usd(job.cost.usd) if job.cost is not None and job.cost.usd else None
    if has_ended(job):
        return f"It has cost {spent}." if spent else "Nothing was charged for it."
    chosen = _chosen(forecast)
    if chosen is None:
        begun = f"It has cost {spent} so far. " if spent else ""
        return f"{begun}No node of the cluster fits any of its sizes, so there is no forecast."
    place = f"on {plural(chosen.slots, f'{chosen.device_kind} slot')}"
    runs = Mark.PRESENT in chosen.marks and job.state is not JobState.PENDING
    if chosen.time_s is None:
        unknown = f"its end is not known yet ({forecast.work.reason})"
        begin = f"It has cost {spent} so far, and costs" if spent and runs else "It costs"
        if not chosen.usd_per_h:
            return f"{begin} nothing {place}, since these slots have no price; {unknown}."
        return f"{begin} {usd(chosen.usd_per_h)} an hour {place}; {unknown}."
    if not chosen.usd_per_h:
        begin = f"It has cost {spent} so far. " if spent else ""
        if runs:
            return f"{begin}It ends in about {_time(chosen)} {place}."
        return f"{begin}Once it {'continues' if spent else 'starts'} {place}, it takes about {_time(chosen)}."
    if runs:
        begin = f"It has cost {spent or '$0.00'} so far, and will cost"
        return f"{begin} about {_money(chosen)} more, ending in about {_time(chosen)} {place}."
    begin = f"It has cost {spent} so far. Once it continues" if spent else "Once it starts"
    return f"{begin} {place}, it takes about {_time(chosen)} and costs about {_money(chosen)}."


def _chosen(forecast: ForecastView) -> ConfigurationForecast | None:
    """Return the present configuration, or else the smallest possible one."""
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
