"""Explanations of a job's allocation, and the value of slightly more capacity to the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headway.contract.values.devices import slots_by_kind
from headway.contract.values.markets import pool_name
from headway.contract.views.decisions import ExplanationView, Outlook, RoundView, RowPrice
from headway.contract.views.jobs import ExplainView, SizeOption
from service.domain.shared.errors import NotFound
from service.usecases.ports.transactions import Transaction

CURRENT = "current"
"""The note of the configuration that the job has at present."""
PAST = "until then"
"""The note of the configuration that the job had at its last decision, and has no longer."""
_DOLLARS = "usd_per_h"


async def explain_job(tx: Transaction, job_id: str) -> ExplanationView:
    """Return the last decision about a job with the latest prices. Raise NotFound if the job does not exist."""
    explained = as_of_now(await tx.job_queries.explain(job_id))
    project = (await tx.job_queries.find(explained.job_id, None)).project
    try:
        latest = await tx.round_queries.round("latest", seen=frozenset({project}))
    except NotFound:
        return ExplanationView(**dict(explained))
    return priced(explained, latest, project)


def as_of_now(explained: ExplainView) -> ExplainView:
    """Return the explanation with the note `CURRENT` at the size that the job has now, not at the one before its last decision."""
    size = explained.size
    noted = next((one for one in explained.options if one.note == CURRENT), None)
    if size is None or (noted is not None and noted.slots == size):
        return explained
    there = [one for one in explained.options if one.slots == size]
    now = there[0] if len(there) == 1 else None
    options = [
        one.model_copy(update={"note": CURRENT})
        if one is now
        else one.model_copy(update={"note": PAST})
        if one is noted
        else one
        for one in explained.options
    ]
    return explained.model_copy(update={"options": options})


def priced(explained: ExplainView, latest: RoundView, project: str) -> ExplanationView:
    """Return the explanation with the prices of the latest round."""
    options = explained.options
    present = next((one for one in options if one.note == CURRENT), None)
    if present is None and explained.size:
        options = []  # its present configuration is not among them, so nothing can be compared with it
    return ExplanationView(
        **dict(explained),
        policy=latest.policy,
        unit=latest.unit,
        binding=_binding(options, present, latest.prices, project),
        outlook=_outlook(options, present, latest.prices, project),
    )


def _binding(
    options: Sequence[SizeOption], present: SizeOption | None, prices: Sequence[RowPrice], project: str
) -> list[RowPrice]:
    """Return the limits with a positive price that a better configuration would use more of."""
    better = [one for one in options if _is_better(one, present)]
    pools = {pool for one in better for pool in _slots_by_pool(one)}
    names = {"slots", "packing"}
    return [
        row
        for row in prices
        if row.price > 0
        and better
        and (
            row.name == f"quota/{project}"
            or _is_money(row, project)
            or (_row_kind(row) in names and _pool(row) in pools)
        )
    ]


def _is_better(one: SizeOption, present: SizeOption | None) -> bool:
    if present is None:
        return True
    if one.utility is None or present.utility is None:
        return one.speedup > present.speedup
    return one.utility > present.utility


def _row_kind(row: RowPrice) -> str:
    return row.name.split("/")[0]


def _pool(row: RowPrice) -> str:
    return row.name.split("/")[1] if "/" in row.name else ""


def _is_money(row: RowPrice, project: str) -> bool:
    """Return True if a row limits the dollars per hour of the project's jobs."""
    return row.name == _DOLLARS or (_row_kind(row) == "budget" and row.project in {None, project})


def _outlook(
    options: Sequence[SizeOption], present: SizeOption | None, prices: Sequence[RowPrice], project: str
) -> list[Outlook]:
    """Return the best configuration within reach of one more slot of each pool, and of one more dollar per
    hour.
    """
    found = []
    for row in prices:
        if _row_kind(row) == "slots":
            pool, held = _pool(row), _slots_by_pool(present)
            within = [one for one in options if _is_within_reach(_slots_by_pool(one), held, pool)]
        elif _is_money(row, project):
            spent = present.usd_per_h if present is not None else 0.0
            within = [one for one in options if one.usd_per_h <= spent + 1.0]
        else:
            continue
        best = max(within, key=lambda one: one.speedup, default=None)
        if best is None or (present is not None and best.speedup <= present.speedup):
            continue
        gain = None
        if present is not None and best.utility is not None and present.utility is not None:
            gain = best.utility - present.utility
        found.append(
            Outlook(
                row=row.name,
                device_kind=best.pool,
                slots=best.slots,
                goodput_samples_per_s=best.goodput_samples_per_s,
                speedup=best.speedup / present.speedup if present is not None else best.speedup,
                gain=gain,
                price=row.price,
            )
        )
    return found


def _slots_by_pool(option: SizeOption | None) -> dict[str, int]:
    """Return the slots of an option, by pool."""
    if option is None:
        return {}
    of_kinds = slots_by_kind(option.device_kind, option.slots - option.anchor)
    slots = {pool_name(kind, option.market): count for kind, count in of_kinds.items()}
    return {**slots, option.device_kind: option.anchor} if option.anchor else slots


def _is_within_reach(wanted: Mapping[str, int], held: Mapping[str, int], pool: str) -> bool:
    """Return True if the option uses the pool and fits into the held slots plus one more slot of that pool."""
    return pool in wanted and all(slots <= held.get(one, 0) + (one == pool) for one, slots in wanted.items())
