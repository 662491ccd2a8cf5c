"""Tests of leases that users request: what is on offer, and what limits forbid."""

from __future__ import annotations

from typing import Any

import pytest

from headway.contract.values.markets import Market
from service.domain.cluster.snapshot import Cap
from service.domain.rental.candidates import priced
from service.domain.rental.decisions.leases import (
    WantedGroup,
    check_bounds,
    leased_candidates,
    leased_machine,
)
from service.domain.rental.machines import MachineReason, MachineState
from service.domain.rental.room import RentalRoom
from service.domain.shared.errors import InvalidField, RentalRefused
from tests.unit.service.builders import NOW, job_of, spec_of
from tests.unit.service.domain.rental.examples import offer_of

OFFERS = [offer_of(), offer_of("g1.large", devices=4, spot_usd_per_h=None, zone="z")]
JOB = job_of("j1", spec=spec_of("gpt", project="team"))
ROOM = RentalRoom(machines=1, usd_per_h=1.0, max_machines=10, max_usd_per_h=8.0)


def group(
    machines: int = 1, name: str = "g1.small", market: Market = Market.SPOT, **fields: Any
) -> WantedGroup:
    return WantedGroup(
        **{
            "provider": "p",
            "region": "r",
            "zone": "",
            "instance_type": name,
            "market": market,
            "machines": machines,
            **fields,
        }
    )


def test_each_machine_has_its_present_offer() -> None:
    groups = [group(3), group(1, "g1.large", Market.ON_DEMAND, zone="z")]
    found = leased_candidates(groups, OFFERS, providers={"p"}, max_usd_per_h=1.75)
    assert [(one.offer.instance_type, one.market, one.usd_per_h) for one in found] == [
        *[("g1.small", Market.SPOT, 0.25)] * 3,
        ("g1.large", Market.ON_DEMAND, 1.0),
    ]


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (group(provider="q"), "groups.1.provider"),
        (group(name="g9"), "groups.1"),
        (group(region="elsewhere"), "groups.1"),
        (group(zone="z"), "groups.1"),
        (group(name="g1.large", zone="z"), "groups.1"),
    ],
    ids=["provider", "type", "region", "zone", "market"],
)
def test_what_is_not_on_offer_is_named(wanted: WantedGroup, field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        leased_candidates([group(), wanted], OFFERS, providers={"p"}, max_usd_per_h=100)
    assert caught.value.field == field


def test_without_providers_nothing_is_leased() -> None:
    with pytest.raises(InvalidField, match="HEADWAY_PROVIDERS"):
        leased_candidates([group()], OFFERS, providers=(), max_usd_per_h=100)


@pytest.mark.parametrize(("most", "fits"), [(0.75, True), (0.7499999, True), (0.74, False)])
def test_a_price_that_rose_since_is_refused(most: float, *, fits: bool) -> None:
    if fits:
        assert len(leased_candidates([group(3)], OFFERS, providers={"p"}, max_usd_per_h=most)) == 3
    else:
        with pytest.raises(RentalRefused):
            leased_candidates([group(3)], OFFERS, providers={"p"}, max_usd_per_h=most)


@pytest.mark.parametrize(
    ("machines", "caps", "fits"),
    [
        (7, [], True),
        (8, [], False),
        (7, [(Cap("all", None, 8.0), 1.0)], True),
        (7, [(Cap("all", None, 7.9), 1.0)], False),
        (2, [(Cap("own", "team", 3.0), 1.0)], True),
        (2, [(Cap("own", "team", 3.0), 1.1)], False),
        (2, [(Cap("other", "x", 0.0), 5.0)], True),
    ],
)
def test_limits_forbid_machines(machines: int, caps: list[tuple[Cap, float]], *, fits: bool) -> None:
    """A machine costs $1 on demand. One of ten is rented, and $1 of $8 an hour is spent."""
    one = next(each for each in priced(OFFERS) if each.market is Market.ON_DEMAND)
    if fits:
        check_bounds([one] * machines, ROOM, caps, JOB)
    else:
        with pytest.raises(RentalRefused):
            check_bounds([one] * machines, ROOM, caps, JOB)


def test_no_more_machines_than_the_service_may_rent() -> None:
    one = priced([offer_of(spot_usd_per_h=None, on_demand_usd_per_h=0.0)])[0]
    check_bounds([one] * 9, ROOM, [], JOB)
    with pytest.raises(RentalRefused, match="limit of 10 machines"):
        check_bounds([one] * 10, ROOM, [], JOB)


def test_a_lease_is_of_the_job_until_it_ends() -> None:
    one = priced(OFFERS)[0]
    found = leased_machine(one, machine_id="m1", job=JOB, by="alice", join_token_sha256="d", now=NOW)
    assert (found.state, found.reason, found.job_id) == (MachineState.WANTED, MachineReason.LEASED, "j1")
    assert (found.slots, found.usd_per_h, found.join_token_sha256) == (1, one.usd_per_h, "d")
    assert "gpt by alice" in found.message
