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
    project = (await tx.job_queries.job(explained.job_id)).project
    try:
        latest = await tx.decision_queries.round("latest")
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
        outlook=_outlook(options, present, latest.prices, usd_per_slot_h),
    )


def _binding(
    options: Sequence[SizeOption], present: SizeOption | None, prices: Sequence[RowPrice], project: str
) -> list[RowPrice]:
    """The limits with a price that a better configuration would take more of."""
    kinds = {one.device_kind for one in options if _is_better(one, present)}
    names = {"slots", "packing"}
    return [
        row
        for row in prices
        if row.price > 0
        and kinds
        and (row.name in {_DOLLARS, f"quota/{project}"} or (_head(row) in names and _kind(row) in kinds))
    ]


def _is_better(one: SizeOption, present: SizeOption | None) -> bool:
    if present is None:
        return True
    if one.utility is None or present.utility is None:
        return one.speedup > present.speedup
    return one.utility > present.utility


def _head(row: RowPrice) -> str:
    return row.name.split("/")[0]


def _kind(row: RowPrice) -> str:
    return row.name.split("/")[1] if "/" in row.name else ""


def _outlook(
    options: Sequence[SizeOption],
    present: SizeOption | None,
    prices: Sequence[RowPrice],
    usd_per_slot_h: Mapping[str, float],
) -> list[Outlook]:
    """What one more slot of each kind, and one more dollar an hour, would let the job have."""
    found = []
    for row in prices:
        if _head(row) == "slots":
            kind = _kind(row)
            held = present.slots if present is not None and present.device_kind == kind else 0
            within = [one for one in options if one.device_kind == kind and one.slots <= held + 1]
        elif row.name == _DOLLARS:
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
                device_kind=best.device_kind,
                slots=best.slots,
                goodput_samples_per_s=best.goodput_samples_per_s,
                speedup=best.speedup / present.speedup if present is not None else best.speedup,
                gain=gain,
                price=row.price,
            )
        )
    return found


def _usd_per_h(option: SizeOption, usd_per_slot_h: Mapping[str, float]) -> float:
    return option.slots * usd_per_slot_h.get(option.device_kind, 0.0)
