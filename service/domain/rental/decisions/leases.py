"""Leases that users request: the machines of a plan for one job, at prices that they have seen. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from headway.contract.values.dollars import dollars
from headway.contract.values.markets import Market
from service.domain.cluster.snapshot import Cap
from service.domain.jobs.job import Job
from service.domain.rental.candidates import Candidate, priced
from service.domain.rental.machines import Machine, MachineReason
from service.domain.rental.offers import Offer
from service.domain.rental.rental_targets import RentalTarget
from service.domain.rental.room import RentalRoom
from service.domain.shared.errors import InvalidField, RentalRefused

_SLACK: Final = 1e-6
"""Relative tolerance in the comparison with the price that the user has seen, which is rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedGroup:
    """Machines of one offer that a user wants."""

    provider: str
    region: str
    zone: str
    instance_type: str
    market: Market
    machines: int


def leased_candidates(
    groups: Sequence[WantedGroup],
    offers: Sequence[Offer],
    *,
    providers: Collection[str],
    max_usd_per_h: float,
) -> tuple[Candidate, ...]:
    """Return a candidate for each machine.

    Raises:
        InvalidField: a group is not on offer at a provider that the service rents from.
        RentalRefused: the machines cost more than `max_usd_per_h`.
    """
    known = {
        (one.offer.provider, one.offer.region, one.offer.zone, one.offer.instance_type, one.market): one
        for one in priced(offers)
    }
    found: list[Candidate] = []
    for index, group in enumerate(groups):
        if group.provider not in providers:
            rents = ", ".join(sorted(providers)) or "nowhere; set HEADWAY_PROVIDERS of the service"
            raise InvalidField(
                f"groups.{index}.provider",
                f"the service does not rent from {group.provider}, but from {rents}",
            )
        one = known.get((group.provider, group.region, group.zone, group.instance_type, group.market))
        if one is None:
            raise InvalidField(
                f"groups.{index}",
                f"{group.market} {group.instance_type} is not on offer in {group.zone or group.region} now; "
                "run `headway recommend` again",
            )
        found += [one] * group.machines
    usd_per_h = sum(one.usd_per_h for one in found)
    if usd_per_h > max_usd_per_h * (1 + _SLACK):
        raise RentalRefused(
            f"the machines cost {dollars(usd_per_h)}/h now, which is more than {dollars(max_usd_per_h)}/h; "
            "run `headway recommend` again."
        )
    return tuple(found)


def check_cost(expected_usd: float | None, left_usd: float | None, job: Job) -> None:
    """Check the expected cost of a plan against what the job may still spend (None: no limit).

    Raises:
        InvalidField: the job has a limit, and the request does not state the cost.
        RentalRefused: the cost exceeds the limit.
    """
    if left_usd is None:
        return
    if expected_usd is None:
        raise InvalidField(
            "expected_cost_usd",
            f"{job.name} has goal.max_cost_usd; state the cost_usd of the plan that `headway recommend` shows",
        )
    if expected_usd <= left_usd * (1 + _SLACK):
        return
    raise RentalRefused(
        f"the machines are expected to cost {dollars(expected_usd)} until {job.name} ends, and its goal.max_cost_usd "
        f"leaves {dollars(max(left_usd, 0.0))}; choose a cheaper plan with --plan, or submit the job with a higher "
        "goal.max_cost_usd."
    )


def check_bounds(
    wanted: Sequence[Candidate], room: RentalRoom, caps: Sequence[tuple[Cap, float]], job: Job
) -> None:
    """Raise RentalRefused if a limit on all machines, or a hard budget of the job's project, forbids the machines.

    `caps` are the hard budgets as dollars per hour, each with the dollars per hour that are being spent.
    """
    usd_per_h = sum(one.usd_per_h for one in wanted)
    for cap, spent in caps:
        if cap.project in {None, job.spec.project} and spent + usd_per_h > cap.usd_per_h + 1e-9:
            raise RentalRefused(
                f"budget {cap.name} leaves {dollars(max(cap.usd_per_h - spent, 0.0))}/h, and the machines cost "
                f"{dollars(usd_per_h)}/h; choose a cheaper plan, or raise the budget."
            )
    for one in wanted:
        obstacle = room.obstacle(one)
        if obstacle:
            raise RentalRefused(
                f"{one.name} cannot be leased: {obstacle}; choose a smaller plan, or raise the limit."
            )
        room = room.after(one)


def leased_machine(
    one: Candidate, *, machine_id: str, job: Job, by: str, join_token_sha256: str, now: datetime
) -> Machine:
    """Return the machine of a lease, in state WANTED."""
    message = f"{one.name}: leased for {job.name} by {by}, until the job ends"
    target = RentalTarget(offer=one.offer, market=one.market, usd_per_h=one.usd_per_h, message=message)
    return target.machine(
        machine_id, join_token_sha256=join_token_sha256, now=now, reason=MachineReason.LEASED, job_id=job.id
    )
