"""Recommendation of machines to rent for a job before its submit, from measurements and offers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from headway.contract.spec import Resize
from headway.contract.values.markets import Market
from headway.contract.views.forecasts import Work
from headway.contract.views.recommendations import (
    GroupView,
    NearestPlan,
    Objective,
    PricedOffer,
    RecommendationRequest,
    RecommendationView,
    RentalPlan,
    SpeedBasis,
)
from service.domain.cluster.snapshot import Measurement
from service.domain.jobs.copies import single_copy_sizes
from service.domain.jobs.job import Job, class_of
from service.domain.perf.forecast import Remaining
from service.domain.rental import flopp
from service.domain.rental.catalogue import Catalogue, selected
from service.domain.rental.decisions.recommend import (
    Goal,
    Need,
    Rated,
    Recommendation,
    candidates,
    rate,
    recommend,
    shape_of,
    shapes_of,
)
from service.domain.rental.offers import Offer
from service.domain.rental.plans import Architecture, MachineGroup, MachinePlan, PlanLimits, Role
from service.domain.rental.speeds import REFERENCE, Basis, ExpectedSpeed, Given, Shape, speeds_at
from service.domain.rental.spot.losses import Costs, exposure
from service.domain.shared.errors import InvalidField
from service.usecases.jobs.forecasts import left_of, work_of
from service.usecases.jobs.planned import planned
from service.usecases.jobs.submit import check_devices
from service.usecases.ports.transactions import Transactions
from service.usecases.rental.offers import OfferBook, view_of, with_hazards

_CHECKPOINT_BYTES_PER_S: Final = 5e8
"""Speed of writing a checkpoint from one host to object storage, in bytes per second."""
_RELAUNCH_S: Final = 30.0
"""Duration of a restart without reading the checkpoint, in seconds."""
_LIVE_S: Final = 1.0
_GOALS: Final[dict[Objective, Goal]] = {
    Objective.TIME: "time",
    Objective.COST: "cost",
    Objective.BALANCED: "balanced",
    Objective.FLOPP: "balanced",
}
_FLOPP_USD_PER_H: Final = 3.0
"""Default hourly budget in DeepVM's ranking, in dollars."""
_MILLION: Final = 1e6
_REFERENCE_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Question:
    """The inputs of a recommendation.

    `unit` is the amount of work that prices per unit refer to, with its name.
    """

    request: RecommendationRequest
    job: Job
    measured: Sequence[Measurement]
    work: Work
    need: Need
    limits: PlanLimits
    offers: tuple[Offer, ...]
    unit: tuple[float, str]
    warnings: tuple[str, ...]
    now: datetime

    @property
    def given(self) -> Given | None:
        """Return the speed that the user states, or None."""
        hint = self.request.speed
        return None if hint is None else Given(hint.device_kind, hint.samples_per_s)


async def recommend_job(
    transactions: Transactions, book: OfferBook, request: RecommendationRequest, now: datetime
) -> RecommendationView:
    """Return rental plans for a job, by the goals of its user. Raise InvalidField for an unknown device kind."""
    job, job_class = planned(request.spec, now), class_of(request.spec)
    catalogue = await book.catalogue(now)
    async with transactions.begin() as tx:
        try:
            await check_devices(tx, request.spec)
        except InvalidField as error:
            raise InvalidField(f"spec.{error.field}", error.message) from error
        measured = await tx.round_queries.measured_of_class(job_class)
        left = left_of(job, await tx.round_queries.ended_samples(job_class))
        catalogue = await with_hazards(tx, catalogue, now)
    question = _question(request, job, measured, left, catalogue, now)
    # The search takes up to a second or two. It runs in a thread, so that other requests are served meanwhile.
    return await asyncio.to_thread(answer, question)


def _question(
    request: RecommendationRequest,
    job: Job,
    measured: Sequence[Measurement],
    left: Remaining,
    catalogue: Catalogue,
    now: datetime,
) -> _Question:
    spec, goal = request.spec, request.spec.goal
    task = _task(request, measured, left)
    deadline = request.deadline or goal.deadline
    objective = request.objective or Objective(goal.objective)
    checkpoint_bytes = float(request.checkpoint_size or flopp.CHECKPOINT_BYTES)
    save_s = checkpoint_bytes / _CHECKPOINT_BYTES_PER_S
    need = Need(
        sizes=spec.allowed_sizes(),
        kinds=spec.resources.devices,
        samples=task.samples,
        spread=task.spread,
        costs=Costs(
            checkpoint_s=save_s,
            restart_s=_RELAUNCH_S + save_s,
            resize_s=_LIVE_S,
            live=spec.elastic.resize is Resize.LIVE,
            single_copy=single_copy_sizes(job),
        ),
        # All markets are considered if the job file does not mention them.
        market=request.market or (spec.market if "market" in spec.model_fields_set else "mixed"),
        objective=_GOALS[objective],
        max_cost_usd=request.max_cost_usd or goal.max_cost_usd,
        deadline_s=None if deadline is None else (deadline - now).total_seconds(),
    )
    return _Question(
        request=request.model_copy(update={"objective": objective}),
        job=job,
        measured=measured,
        work=task.work,
        need=need,
        limits=PlanLimits(
            max_usd_per_h=request.max_usd_per_h,
            vcpus=request.vcpu_quotas,
            device_bytes=float(request.device_memory or 0),
        ),
        offers=selected(catalogue.offers, provider=request.provider, region=request.region),
        unit=task.unit,
        warnings=(*catalogue.left_out, *task.warnings),
        now=now,
    )


@dataclass(frozen=True, slots=True)
class _Task:
    """The work that plans are compared on, in the unit of speeds, and the unit of prices."""

    work: Work
    samples: float
    spread: float
    unit: tuple[float, str]
    warnings: tuple[str, ...] = ()


def _task(request: RecommendationRequest, measured: Sequence[Measurement], left: Remaining) -> _Task:
    work, unit = work_of(left, started=False), (_MILLION, "samples")
    samples, spread = float(left.samples[0]), float(left.spread[0])
    if request.samples is not None:
        samples, spread = request.samples, 0.0
        work = work.model_copy(
            update={"samples": samples, "samples_p90": samples, "reason": "as the request says"}
        )
    if request.speed is None and not any(one.believable for one in measured):
        warning = (
            f"no measurements of the class {class_of(request.spec)} exist: plans are compared by TFLOPS and a scaling "
            f"law, on work that takes one {REFERENCE} an hour; state a speed (--samples-per-s KIND=RATE) or run the job once"
        )
        return _Task(work, _REFERENCE_S, 0.0, (_REFERENCE_S, f"seconds of one {REFERENCE}"), (warning,))
    if not math.isfinite(samples):
        warning = f"{work.reason}: times and costs are those of a million samples; state the number of samples (--samples N)"
        return _Task(work, _MILLION, 0.0, unit, (warning,))
    return _Task(work, samples, spread, unit)


def answer(question: _Question) -> RecommendationView:
    """Return the plans, or the nearest ones if no plan meets the limits, and the price of each offer for this
    job.
    """
    warnings = list(question.warnings)
    values: dict[MachinePlan, float] = {}
    if not question.request.limit:
        found = Recommendation((), (), 0)
    elif question.request.objective is Objective.FLOPP:
        found, values = _by_flopp(question, warnings)
    else:
        found = _by_goal(question, warnings)
    return RecommendationView(
        name=question.job.spec.name,
        at=question.now,
        objective=question.request.objective or Objective.BALANCED,
        work=question.work,
        unit=question.unit[1],
        plans=[_plan_view(one, values.get(one.plan)) for one in _shown(question, found.ranked)],
        nearest=[
            NearestPlan(limit=one.limit, value=one.value, reason=one.reason, plan=_plan_view(one.rated, None))
            for one in found.nearest
        ],
        offers=_priced(question),
        weighed=found.weighed,
        warnings=warnings,
    )


def _by_goal(question: _Question, warnings: list[str]) -> Recommendation:
    need, limits = question.need, question.limits
    plans = candidates(need, question.offers, limits)
    found = recommend(need, plans, _speeds(question, plans))
    if not found.ranked and limits.max_usd_per_h is not None:
        unlimited = candidates(need, question.offers, replace(limits, max_usd_per_h=None))
        found = recommend(need, plans, _speeds(question, [*plans, *unlimited]), unlimited=unlimited)
    if not found.ranked and not found.nearest:
        kinds = ", ".join(need.kinds) or "any kind"
        warnings.append(
            f"no offer has {kinds} in a size of {need.sizes[0]} to {need.sizes[-1]} slots; see headway offers"
        )
    return found


def _by_flopp(question: _Question, warnings: list[str]) -> tuple[Recommendation, dict[MachinePlan, float]]:
    """Return DeepVM's plans by its own value, without regard to the cost to completion."""
    kinds = question.need.kinds
    offers = [one for one in question.offers if not kinds or one.device_kind in kinds]
    valued = flopp.plans(
        offers,
        max_usd_per_h=question.request.max_usd_per_h or _FLOPP_USD_PER_H,
        quotas=question.request.vcpu_quotas or flopp.QUOTAS,
        count=question.request.limit,
        architectures=(Architecture.SINGLE_ANCHOR,),
    )
    values = {plan: value for value, plan in valued}
    ranked = tuple(rate(question.need, [*values], _speeds(question, [*values])))
    warnings.append(
        "ranked by FLOP per dollar as DeepVM does, without its remote nodes for checkpoints: it spends the hourly budget and weighs neither time nor cost to "
        "completion; --objective time, cost or balanced do"
    )
    if not ranked:
        warnings.append(
            f"DeepVM rates only {', '.join(flopp.RATINGS)}, and no plan with them is within the limits"
        )
    sizes = question.need.sizes
    if any(one.plan.slots not in sizes for one in ranked):
        warnings.append(f"DeepVM ignores elastic sizes: the job file allows {sizes[0]} to {sizes[-1]} slots")
    return Recommendation(ranked, (), len(ranked)), values


def _speeds(question: _Question, plans: Sequence[MachinePlan]) -> dict[Shape, ExpectedSpeed]:
    return speeds_at(question.job, question.measured, shapes_of(plans), question.given)


def _shown(question: _Question, ranked: Sequence[Rated]) -> list[Rated]:
    """Return the best plans up to the limit, and all marked ones."""
    limit = question.request.limit
    return [one for index, one in enumerate(ranked) if index < limit or one.marks]


def _priced(question: _Question) -> list[PricedOffer]:
    """Return the price of a unit of the job's work on each offer."""
    kinds, least = question.need.kinds, question.limits.device_bytes
    offers = [
        one
        for one in question.offers
        if (not kinds or one.device_kind in kinds) and one.device_memory_bytes >= least
    ]
    plans = {
        one: {
            market: MachinePlan(
                Architecture.ALL_SPOT if market is Market.SPOT else Architecture.ALL_ON_DEMAND,
                (MachineGroup(Role.WORKER, one, market, 1),),
            )
            for market in Market
        }
        for one in offers
    }
    speeds = _speeds(question, [plan for of_offer in plans.values() for plan in of_offer.values()])
    found = []
    for one, of_offer in plans.items():
        speed = speeds[shape_of(of_offer[Market.SPOT])]
        prices = {
            market: _per_unit(question, one.usd_per_h(market), speed, plan)
            for market, plan in of_offer.items()
        }
        found.append(
            PricedOffer(
                offer=view_of(one),
                slots=one.devices,
                goodput=_goodput(speed),
                basis=SpeedBasis(speed.basis),
                on_demand_usd_per_unit=prices[Market.ON_DEMAND],
                spot_usd_per_unit=prices[Market.SPOT],
            )
        )
    return sorted(found, key=_cheapest_of)


def _per_unit(
    question: _Question, usd_per_h: float | None, speed: ExpectedSpeed, plan: MachinePlan
) -> float | None:
    kept = speed.goodput * exposure(plan, question.need.costs).left
    return None if usd_per_h is None or kept <= 0 else usd_per_h / _REFERENCE_S * question.unit[0] / kept


def _cheapest_of(one: PricedOffer) -> float:
    prices = [one.on_demand_usd_per_unit, one.spot_usd_per_unit]
    return min((price for price in prices if price is not None), default=math.inf)


def _goodput(speed: ExpectedSpeed) -> float | None:
    return None if speed.basis is Basis.ASSUMED else speed.goodput


def _plan_view(rated: Rated, value: float | None) -> RentalPlan:
    plan, exposed = rated.plan, rated.exposure
    return RentalPlan(
        architecture=plan.architecture.value,
        groups=[
            GroupView(
                role=one.role.value,
                machines=one.machines,
                instance_type=one.offer.instance_type,
                market=one.market,
                provider=one.offer.provider,
                region=one.offer.region,
                zone=one.offer.zone,
                usd_per_h=one.usd_per_h,
            )
            for one in plan.groups
        ],
        device_kind=plan.device_kind,
        slots=plan.slots,
        usd_per_h=plan.usd_per_h,
        goodput=_goodput(rated.speed),
        basis=SpeedBasis(rated.speed.basis),
        losses_per_h=exposed.losses_per_h,
        kept=exposed.left,
        checkpoint_every_s=exposed.interval_s if math.isfinite(exposed.interval_s) else None,
        time_s=rated.time_s,
        time_p90_s=rated.time_p90_s,
        cost_usd=rated.cost_usd,
        cost_p90_usd=rated.cost_p90_usd,
        flopp=value,
        marks=[one.value for one in rated.marks],
        reasons=list(rated.reasons),
    )
