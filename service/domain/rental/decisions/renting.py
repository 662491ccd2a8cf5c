"""Decision which machines to rent and to release: the rule of the spot market first, then the rule of `autoscale`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from service.domain.cluster.snapshot import Snapshot
from service.domain.policies.budget import long_run_budget
from service.domain.rental.candidates import Candidate
from service.domain.rental.decisions.autoscale import decide_rental_targets
from service.domain.rental.decisions.market_choice import SpotChoice, spot_choices
from service.domain.rental.machines import Machine, MachineReason, MachineState
from service.domain.rental.offers import Offer
from service.domain.rental.rental_targets import Fleet, RentalTarget, RentalTargets, RentalTerms
from service.domain.rental.worth.clusters import SnapshotCluster


def decide_renting(
    snapshot: Snapshot, fleet: Fleet, offers: Sequence[Offer], terms: RentalTerms
) -> RentalTargets:
    """Return the machines to rent and to release now, each with its reason, and the limits of the jobs covered.

    The machines of a job that `spot_choices` covers are those of its choice. All other machines are worth what
    they are worth to the other jobs. Machines that were leased for a job stay until it has ended. With a price of
    delay, that price decides for all jobs.
    """
    choices: Sequence[SpotChoice] = ()
    if long_run_budget(terms.policy) is None:
        choices = spot_choices(
            snapshot, fleet, offers, cooling=terms.cooling, rules=terms.rules, boot_s=terms.boot_s
        )
    rent = [_target(choice, one) for choice in choices for one in choice.rent]
    held_back = next((f"{one.job.name}: {one.held_back}" for one in choices if one.held_back), "")
    leased = {one.id for one in fleet.machines if one.job_id in snapshot.jobs}
    limits = {one.job.id: one.limit for one in choices}
    others = decide_rental_targets(
        SnapshotCluster(replace(snapshot, market_limits=limits), frozenset(fleet.nodes.values())),
        Fleet(
            machines=(*fleet.machines, *_as_wanted(rent, snapshot.now)),
            nodes=fleet.nodes,
            kept=fleet.kept | leased | {machine for one in choices for machine in one.kept},
            settled=frozenset(limits),
        ),
        offers,
        terms,
    )
    return replace(
        others,
        rent=(*rent, *others.rent),
        held_back=held_back or others.held_back,
        market_limits=limits,
    )


def _target(choice: SpotChoice, one: Candidate) -> RentalTarget:
    return RentalTarget(
        offer=one.offer,
        market=one.market,
        usd_per_h=one.usd_per_h,
        message=f"{one.name} for {choice.job.name}: {choice.holding.reason}",
    )


def _as_wanted(rent: Sequence[RentalTarget], now: datetime) -> list[Machine]:
    """Return the machines that are about to be rented, so that nothing is rented twice."""
    return [
        Machine(
            id=f"spot-{number}",
            provider=one.offer.provider,
            region=one.offer.region,
            zone=one.offer.zone,
            instance_type=one.offer.instance_type,
            device_kind=one.offer.device_kind,
            slots=one.offer.devices,
            market=one.market,
            usd_per_h=one.usd_per_h,
            state=MachineState.WANTED,
            reason=MachineReason.WORTH_IT,
            message=one.message,
            requested_at=now,
            state_since=now,
        )
        for number, one in enumerate(rent)
    ]
