"""Why a job has what it has, and what a little more would be worth to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headway.contract.decisions import ExplanationView, Outlook, RoundView, RowPrice
from headway.contract.jobs import ExplainView, SizeOption
from service.domain.errors import NotFound
from service.usecases.ports import Transaction

CURRENT = "current"
"""The note of the configuration that a job has."""
_DOLLARS = "usd_per_h"


async def explain_job(tx: Transaction, job_id: str, usd_per_slot_h: Mapping[str, float]) -> ExplanationView:
    """The last decision about a job and the latest prices. Raises NotFound."""
    explained = await tx.job_queries.explain(job_id)
    project = (await tx.job_queries.find(explained.job_id, None)).project
    try:
        latest = await tx.decision_queries.round("latest", seen=frozenset({project}))
    except NotFound:
        return ExplanationView(**dict(explained))
    return priced(explained, latest, project, usd_per_slot_h)


def priced(
    explained: ExplainView, latest: RoundView, project: str, usd_per_slot_h: Mapping[str, float]
) -> ExplanationView:
    """The explanation with the prices of the latest round."""
    options = explained.options
    present = next((one for one in options if one.note == CURRENT), None)
    return ExplanationView(
        **dict(explained),
        policy=latest.policy,
        unit=latest.unit,
        binding=_binding(options, present, latest.prices, project),
        outlook=_outlook(options, present, latest.prices, project, usd_per_slot_h),
    )


def _binding(
    options: Sequence[SizeOption], present: SizeOption | None, prices: Sequence[RowPrice], project: str
) -> list[RowPrice]:
    """The limits with a price that a better configuration would take more of."""
    better = [one for one in options if _is_better(one, present)]
    pools = {pool for one in better for pool in (one.pool, one.device_kind if one.anchor else one.pool)}
    names = {"slots", "packing"}
    return [
        row
        for row in prices
        if row.price > 0
        and better
        and (
            row.name == f"quota/{project}"
            or _is_money(row, project)
            or (_head(row) in names and _pool(row) in pools)
        )
    ]


def _is_better(one: SizeOption, present: SizeOption | None) -> bool:
    if present is None:
        return True
    if one.utility is None or present.utility is None:
        return one.speedup > present.speedup
    return one.utility > present.utility


def _head(row: RowPrice) -> str:
    return row.name.split("/")[0]


def _pool(row: RowPrice) -> str:
    return row.name.split("/")[1] if "/" in row.name else ""


def _is_money(row: RowPrice, project: str) -> bool:
    """Whether a row is dollars an hour that the project's jobs count in."""
    return row.name == _DOLLARS or (_head(row) == "budget" and row.project in {None, project})


def _outlook(
    options: Sequence[SizeOption],
    present: SizeOption | None,
    prices: Sequence[RowPrice],
    project: str,
    usd_per_slot_h: Mapping[str, float],
) -> list[Outlook]:
    """What one more slot of each pool, and one more dollar an hour, would let the job have."""
    found = []
    for row in prices:
        if _head(row) == "slots":
            pool, held = _pool(row), _parts(present)
            within = [one for one in options if _reached(_parts(one), held, pool)]
        elif _is_money(row, project):
            spent = _usd_per_h(present, usd_per_slot_h) if present is not None else 0.0
            within = [one for one in options if _usd_per_h(one, usd_per_slot_h) <= spent + 1.0]
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


def _usd_per_h(option: SizeOption, usd_per_slot_h: Mapping[str, float]) -> float:
    if option.usd_per_h is not None:
        return option.usd_per_h
    return option.slots * usd_per_slot_h.get(option.device_kind, 0.0)


def _parts(option: SizeOption | None) -> dict[str, int]:
    """The slots of an option by pool."""
    if option is None:
        return {}
    rest = {option.pool: option.slots - option.anchor}
    return {**rest, option.device_kind: option.anchor} if option.anchor else rest


def _reached(wanted: Mapping[str, int], held: Mapping[str, int], pool: str) -> bool:
    """Whether what is wanted lies in the pool, and needs no more than what is held and one more slot of it."""
    return pool in wanted and all(slots <= held.get(one, 0) + (one == pool) for one, slots in wanted.items())
