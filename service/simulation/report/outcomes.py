"""Outcomes of runs from the live cluster: per job and on average, side by side, and in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headway.contract.values.dollars import dollars
from headway.contract.values.quantities import duration
from headway.contract.views.simulations import JobComparison, JobOutcome, Outcome
from service.domain.cluster.snapshot import PolicySetting
from service.domain.shared.arrays import BoolArray, FloatArray

_HOUR_S = 3600.0
_NAMED = 3
"""Number of jobs named in sentences, each of those that gain and of those that lose most."""
_NOTHING = 0.005
"""Largest relative difference that counts as none."""
_MOMENT_S = 5.0
"""Largest absolute difference in seconds that counts as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """All runs of one case, with S seeds and J jobs.

    Times (S, J) are seconds from now, infinite for events that never happen before the horizon. `usd`,
    `slot_h` and `changes` (S, J) count from now on.

    Attributes:
        label: Label of the case.
        setting: Policy of the case.
        ids, names: Ids and names of the jobs (J,).
        endless: Jobs without a known end (J,). No average counts them.
        submit_s: Time of submission (J,), 0 for present jobs.
        slots: Number of slots of the cluster.
    """

    label: str
    setting: PolicySetting
    ids: tuple[str, ...]
    names: tuple[str, ...]
    endless: BoolArray
    submit_s: FloatArray
    start_s: FloatArray
    end_s: FloatArray
    usd: FloatArray
    slot_h: FloatArray
    changes: FloatArray
    slots: int


def outcome_of(runs: Runs, horizon_s: float) -> Outcome:
    """Return the figures of one case."""
    counted = ~runs.endless
    took_s = _completion_s(runs, horizon_s)[:, counted]
    wait_s = np.minimum(runs.start_s, horizon_s) - runs.submit_s
    last_s = _last_s(runs, horizon_s)
    present_h = runs.slots * last_s.mean() / _HOUR_S
    slot_h = float(runs.slot_h.sum(axis=1).mean())
    return Outcome(
        label=runs.label,
        policy=runs.setting.name,
        parameters=dict(runs.setting.parameters),
        jobs=len(runs.ids),
        unfinished=float(np.isinf(runs.end_s[:, counted]).sum(axis=1).mean()),
        avg_s=_mean(took_s),
        median_s=float(np.median(took_s)) if took_s.size else 0.0,
        p90_s=float(np.quantile(took_s, 0.9)) if took_s.size else 0.0,
        last_s=float(last_s.mean()),
        wait_s=_mean(wait_s),
        usd=float(runs.usd.sum(axis=1).mean()),
        slot_h=slot_h,
        utilisation=min(slot_h / present_h, 1.0) if present_h > 0 else 0.0,
        changes_per_job=_mean(runs.changes),
    )


def comparisons(cases: Sequence[Runs]) -> list[JobComparison]:
    """Return the outcomes of every job in each of the cases, in the order of their submissions."""
    places = [{job: place for place, job in enumerate(one.ids)} for one in cases]
    names = {job: name for one in cases for job, name in zip(one.ids, one.names, strict=True)}
    return [
        JobComparison(
            job_id=job,
            name=name,
            outcomes=[
                _of_job(one, places_of[job]) if job in places_of else None
                for one, places_of in zip(cases, places, strict=True)
            ],
        )
        for job, name in names.items()
    ]


def differences(before: Runs, after: Runs, horizon_s: float) -> Iterator[str]:
    """Yield sentences about the differences after changes: of jobs in both cases, then the cost, then single jobs."""
    places = {job: place for place, job in enumerate(after.ids)}
    common = [(place, places[job]) for place, job in enumerate(before.ids) if job in places]
    of_before, of_after = np.array(common, dtype=np.int64).reshape(len(common), 2).T
    counted = ~(before.endless[of_before] | after.endless[of_after])
    was_s = _completion_s(before, horizon_s)[:, of_before[counted]]
    is_s = _completion_s(after, horizon_s)[:, of_after[counted]]
    if was_s.size:
        yield _sooner(_mean(was_s), _mean(is_s))
    yield from _unfinished(before, after)
    was_usd, is_usd = (float(one.usd.sum(axis=1).mean()) for one in (before, after))
    if was_usd > 0 or is_usd > 0:
        yield _dearer(was_usd, is_usd)
    names = [before.names[place] for place in of_before[counted].tolist()]
    yield from _single_jobs(names, was_s, is_s)
    for count, word in ((len(after.ids) - len(common), "more"), (len(before.ids) - len(common), "fewer")):
        if count:
            yield f"{count} job{'s' if count > 1 else ''} {word}; only the other jobs are compared"


def _sooner(was_s: float, is_s: float) -> str:
    times = f"{duration(is_s)} instead of {duration(was_s)}"
    if not _differs(was_s, is_s):
        return f"jobs end as soon as before on average, after {duration(is_s)}"
    if is_s < was_s:
        return f"jobs end {1 - is_s / was_s:.0%} sooner on average: after {times}"
    if was_s <= 0:
        return f"jobs end later on average: after {times}"
    return f"jobs end {is_s / was_s - 1:.0%} later on average: after {times}"


def _dearer(was_usd: float, is_usd: float) -> str:
    if abs(is_usd - was_usd) <= _NOTHING * was_usd or dollars(is_usd) == dollars(was_usd):
        return f"it costs the same, {dollars(is_usd)}"
    if was_usd > 0 and is_usd >= 10 * was_usd:
        return (
            f"it costs {is_usd / was_usd:,.0f} times as much: {dollars(is_usd)} instead of {dollars(was_usd)}"
        )
    more = f"{abs(is_usd / was_usd - 1):.0%} " if was_usd > 0 else ""
    return f"it costs {more}{'more' if is_usd > was_usd else 'less'}: {dollars(is_usd)} instead of {dollars(was_usd)}"


def _unfinished(before: Runs, after: Runs) -> Iterator[str]:
    was, is_ = (float(np.isinf(one.end_s[:, ~one.endless]).sum(axis=1).mean()) for one in (before, after))
    if abs(is_ - was) >= 0.5:
        word = "more" if is_ > was else "fewer"
        yield f"{_jobs(abs(is_ - was), word)} not ended within the horizon"


def _jobs(count: float, word: str) -> str:
    return f"1 {word} job has" if round(count) == 1 else f"{count:.0f} {word} jobs have"


def _single_jobs(names: Sequence[str], was_s: FloatArray, is_s: FloatArray) -> Iterator[str]:
    """Yield sentences about the jobs that gain and lose most, by the medians of their runs."""
    if not was_s.size:
        return
    was, is_ = np.median(was_s, axis=0), np.median(is_s, axis=0)
    for sign, word in ((-1.0, "sooner"), (1.0, "later")):
        more = sign * (is_ - was)
        found = [
            f"{names[job]} by {duration(more[job])}"
            for job in np.argsort(-more, kind="stable")[:_NAMED].tolist()
            if more[job] > 0 and _differs(was[job], is_[job])
        ]
        if found:
            yield f"{word} ends: {', '.join(found)}"


def _differs(was_s: float, is_s: float) -> bool:
    return abs(is_s - was_s) > max(_MOMENT_S, _NOTHING * was_s)


def _completion_s(runs: Runs, horizon_s: float) -> FloatArray:
    """Return the completion times (S, J): from now, or from a later submission, to the end or the horizon."""
    return np.minimum(runs.end_s, horizon_s) - runs.submit_s


def _last_s(runs: Runs, horizon_s: float) -> FloatArray:
    """Return the time (S,) when the last job has ended, or the horizon if one continues."""
    ends_s = np.minimum(runs.end_s, horizon_s)
    return ends_s.max(axis=1) if ends_s.size else np.zeros(len(ends_s))


def _of_job(runs: Runs, job: int) -> JobOutcome:
    ends_s = runs.end_s[:, job]
    return JobOutcome(
        start_s=_time(float(np.median(runs.start_s[:, job]))),
        end_s=_time(float(np.median(ends_s))),
        end_low_s=_time(float(ends_s.min())),
        end_high_s=_time(float(ends_s.max())),
        usd=float(np.median(runs.usd[:, job])),
        slot_h=float(np.median(runs.slot_h[:, job])),
        changes=float(np.mean(runs.changes[:, job])),
    )


def _time(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if values.size else 0.0
