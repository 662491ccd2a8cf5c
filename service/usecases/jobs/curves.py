"""Configurations of a job as the API shows them: speed, time, cost, and the remarkable ones among them."""

from __future__ import annotations

import math

import numpy as np

from headway.contract.values.depths import mean_depth
from headway.contract.views.forecasts import Confidence, ConfigurationForecast, Mark
from service.domain.allocation.decision.note_texts import note_text
from service.domain.allocation.decision.speedups import OneSlot, one_slot_of
from service.domain.allocation.inputs.notes import Note
from service.domain.allocation.inputs.round import Round
from service.domain.cluster.pools import slots_of
from service.domain.contention.costs import change_s
from service.domain.jobs.work import worth_of_work
from service.domain.perf.forecast import Z90, Forecast, Remaining, forecast
from service.domain.perf.searches.frontier import knee, pareto_front
from service.domain.shared.arrays import FloatArray, IntArray

_SURE = 0.15
"""Maximum standard deviation of a speed's logarithm for high confidence."""
_FAIR = 0.4
"""Maximum standard deviation of a speed's logarithm for medium confidence."""


def curve(round_: Round, left: Remaining) -> list[ConfigurationForecast]:
    """Return every configuration of the round's only job, by device kind and size.

    `left` is the job's remaining work.
    """
    given, table = round_.given, round_.estimates.table
    configurations, current = given.configurations, int(given.current[0])
    shown = np.flatnonzero((round_.notes.codes[0] != Note.NOT_ALLOWED) & (table.goodput[0] > 0))
    if not shown.size:
        return []
    kind, slots = configurations.kind, configurations.slots
    # The remaining work may be in plain samples: a larger batch takes them faster, although each is worth less.
    plain = worth_of_work(round_.jobs[0], table.efficiency[0], table.counted[0])
    expected = forecast(
        goodput=table.goodput[0] / plain,
        low=table.low[0] / plain,
        remaining=left.samples,
        remaining_spread=left.spread,
        usd_per_h=configurations.usd_per_h,
        pause_s=np.where(
            (np.arange(slots.size) == current) | (current < 0),
            0.0,
            change_s(round_.jobs[0], round_.scope.usual),
        ),
    )
    one_slot = one_slot_of(round_, 0, shown)
    marks = _marks(round_, shown)
    order = shown[np.lexsort((slots[shown], kind[shown]))]
    return [_row(round_, column, expected, one_slot, marks.get(column, [])) for column in order.tolist()]


def _row(
    round_: Round, column: int, expected: Forecast, one_slot: OneSlot, marks: list[Mark]
) -> ConfigurationForecast:
    configurations, table = round_.given.configurations, round_.estimates.table
    goodput, high = float(table.goodput[0, column]), float(table.high[0, column])
    # Without a measurement of the job or its class, only ratios of speeds are meaningful.
    known = bool(round_.estimates.known[0])
    min_depth = round_.jobs[0].spec.elastic.min_depth
    has_batch = round_.jobs[0].progress.unit == "samples"
    return ConfigurationForecast(
        device_kind=configurations.kind_name(int(column)),
        slots=int(configurations.slots[column]),
        nodes=int(configurations.nodes[column]),
        goodput=goodput if known else None,
        goodput_low=float(table.low[0, column]) if known else None,
        goodput_high=high if known else None,
        speedup=goodput / one_slot.goodput,
        one_slot_measured=one_slot.measured,
        confidence=confidence_of(goodput, high),
        global_batch=int(table.global_batch[0, column]) if has_batch else 0,
        local_batch=int(table.local_batch[0, column]) if has_batch else 0,
        accumulation=int(table.accumulation[0, column]),
        time_s=_number(expected.time_p50_s[column], known),
        time_p90_s=_number(expected.time_p90_s[column], known),
        cost_usd=_number(expected.cost_p50_usd[column], known),
        cost_p90_usd=_number(expected.cost_p90_usd[column], known),
        usd_per_h=float(configurations.usd_per_h[column]),
        depth=None if min_depth is None else mean_depth(min_depth, int(configurations.slots[column])),
        why_not_now=_why_not_now(round_, column),
        marks=marks,
    )


def confidence_of(goodput: float, high: float) -> Confidence:
    """Return the confidence in a speed, from the distance between its P90 and its median."""
    spread = math.log(high / goodput) / Z90 if high >= goodput > 0 else math.inf
    return Confidence.HIGH if spread <= _SURE else Confidence.MEDIUM if spread <= _FAIR else Confidence.LOW


def _marks(round_: Round, shown: IntArray) -> dict[int, list[Mark]]:
    """Return the marks of configurations, by column.

    Time and cost are those of one sample, which sort the configurations like those of all remaining work. If
    nothing has a price, slot-hours replace dollars.
    """
    configurations = round_.given.configurations
    price: FloatArray = configurations.usd_per_h[shown]
    if not price.any():
        price = configurations.slots[shown].astype(np.float64)
    time = 1.0 / round_.estimates.table.goodput[0, shown]
    cost = time * price
    marks: dict[int, list[Mark]] = {}

    def put(index: int, mark: Mark) -> None:
        marks.setdefault(int(shown[index]), []).append(mark)

    holds = np.flatnonzero(shown == round_.given.current[0])
    for index in holds.tolist():
        put(index, Mark.PRESENT)
    for index in pareto_front(time, cost).tolist():
        put(index, Mark.FRONT)
    best = knee(time, cost)
    if best is not None:
        put(best, Mark.KNEE)
    put(int(np.lexsort((cost, configurations.slots[shown]))[0]), Mark.SMALLEST)
    put(int(np.lexsort((cost, time))[0]), Mark.FASTEST)
    return marks


def _why_not_now(round_: Round, column: int) -> str:
    """Return the reason why the job cannot have the configuration while all other jobs keep their slots, or
    "".
    """
    note = Note(int(round_.notes.codes[0, column]))
    if note is Note.CURRENT:
        return ""
    for row in round_.given.rows:
        if row.demand[column] > row.capacity and (row.jobs is None or row.jobs[0]):
            return _used_up(row.name, int(row.capacity))
    return (
        "tried once a size near it is measured"
        if note is Note.TOO_FAR
        else note_text(note, round_.jobs[0], round_.snapshot)
    )


def _used_up(row: str, capacity: int) -> str:
    """Explain that the job needs more capacity of a row than other jobs leave."""
    match row.split("/"):
        case ["slots", kind] if capacity == 0:
            return f"all {kind} slots are in use: the job would wait, or other jobs would shrink"
        case ["slots", kind]:
            return (
                f"only {slots_of(capacity, kind)} {'is' if capacity == 1 else 'are'} free or held by this job"
            )
        case ["packing", kind, size]:
            return f"too few groups of {slots_of(int(size), kind)} on one node are free or held by this job"
    return f"too little capacity of {row} is left"


def _number(value: float, known: bool) -> float | None:  # noqa: FBT001
    return float(value) if known and math.isfinite(value) else None
