"""Jobs on a market of machines with one slot, small to write down: on demand at $1 an hour, on spot at $0.30."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from headway.contract.agents import NodeState
from headway.contract.values.markets import Market
from headway.contract.views.jobs import JobProgress, JobState
from service.domain.cluster.snapshot import Node, SlotKey, Snapshot
from service.domain.jobs.job import Job
from service.domain.rental.decisions.market_choice import SpotChoice, spot_choices
from service.domain.rental.fleet import LaunchBackoff, RentalPlace
from service.domain.rental.machines import Machine, MachineState
from service.domain.rental.offers import Offer
from service.domain.rental.rental_targets import Fleet, RentalRules
from tests.unit.service.builders import NOW, job_of, machine_of, snapshot_of, spec_of
from tests.unit.service.domain.rental.decisions.test_autoscale import measured

LINEAR = measured({slots: 100.0 * slots for slots in range(1, 17)})
"""A hundred samples per second and slot."""
HOUR = 3600
MANY = RentalRules(max_machines=100)
SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND


def offer(name: str = "small", **fields: Any) -> Offer:
    return Offer(
        **{
            "provider": "cloud",
            "region": "here",
            "instance_type": name,
            "device_kind": "cpu",
            "devices": 1,
            "on_demand_usd_per_h": 1.0,
            "spot_usd_per_h": 0.3,
            "seen_at": NOW,
            **fields,
        }
    )


def trains(
    name: str = "gpt",
    *,
    age_s: float = HOUR,
    samples: int = 0,
    hours: float = 4.0,
    deadline_h: float | None = None,
    state: JobState = JobState.RUNNING,
    **spec: Any,
) -> Job:
    """A job of 1 to 16 slots that requests 4, whose whole work takes those so many hours on demand."""
    goal = {"objective": "cost"}
    if deadline_h is not None:
        goal["deadline"] = (NOW + timedelta(hours=deadline_h)).isoformat()
    fields = {"market": "mixed", "elastic": {"min": 1, "max": 16}, "goal": goal, **spec}
    return job_of(
        name,
        state,
        age_s=age_s,
        spec=spec_of(name, **fields),
        generation=1,
        live=state is JobState.RUNNING,
        progress=JobProgress(samples=samples, total_samples=int(hours * HOUR * 400)),
    )


def rented(
    market: Market, *numbers: int, state: MachineState = MachineState.RUNNING, **fields: Any
) -> list[Machine]:
    letter = "s" if market is SPOT else "d"
    return [
        machine_of(
            f"{letter}{number}",
            slots=1,
            market=market,
            usd_per_h=0.3 if letter == "s" else 1.0,
            state=state,
            **fields,
        )
        for number in numbers
    ]


def situation(
    jobs: Sequence[Job],
    machines: Sequence[Machine] = (),
    held: Mapping[str, Sequence[str]] | None = None,
    own: Sequence[Node] = (),
) -> tuple[Snapshot, Fleet]:
    """A cluster of these machines. `held` are the machines, and the own nodes, that jobs hold."""
    joined = {one.id: f"n-{one.id}" for one in machines if one.state is MachineState.RUNNING}
    nodes = [
        Node(
            id=joined[one.id],
            name=one.id,
            state=NodeState.READY,
            slots={0: one.device_kind},
            market=one.market,
            usd_per_slot_h=one.usd_per_h,
        )
        for one in machines
        if one.id in joined
    ]
    slots = {
        job: [(joined.get(machine, machine), 0) for machine in of_job] for job, of_job in (held or {}).items()
    }
    snapshot = snapshot_of([*nodes, *own], jobs, slots, {job.id: LINEAR for job in jobs})
    return snapshot, Fleet(machines=machines, nodes=joined)


def chosen(
    snapshot: Snapshot,
    fleet: Fleet,
    offers: Sequence[Offer] = (offer(),),
    *,
    cooling: Mapping[RentalPlace, LaunchBackoff] | None = None,
    rules: RentalRules = MANY,
) -> tuple[SpotChoice, ...]:
    return spot_choices(snapshot, fleet, offers, cooling=cooling or {}, rules=rules)


def only(*args: Any, **options: Any) -> SpotChoice:
    (one,) = chosen(*args, **options)
    return one


def closed(market: Market = SPOT, **fields: Any) -> dict[RentalPlace, LaunchBackoff]:
    """A backoff of the place of `offer()`."""
    place = RentalPlace("cloud", "here", "", "small", market)
    return {replace(place, **fields): LaunchBackoff(NOW + timedelta(seconds=60), "none left")}


def markets(choice: SpotChoice) -> tuple[int, int]:
    """The machines to rent, on demand and on spot."""
    return tuple(sum(one.market is market for one in choice.rent) for market in Market)  # type: ignore[return-value]


def holds(snapshot: Snapshot, job: str, node: str) -> Snapshot:
    """The snapshot in which a job also holds the first slot of a node."""
    return replace(snapshot, held={**snapshot.held, SlotKey(node, 0): job})
