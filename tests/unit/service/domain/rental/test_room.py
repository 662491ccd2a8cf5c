"""Tests of the machines that may still be rented."""

from __future__ import annotations

import math

import pytest

from headway.contract.values.markets import Market
from service.domain.cluster.snapshot import Cap
from service.domain.rental.candidates import Candidate, priced
from service.domain.rental.rental_targets import Fleet, RentalRules
from service.domain.rental.room import RentalRoom, room_of
from tests.unit.service.domain.rental.spot.situations import ON_DEMAND, offer, rented


def candidate(usd_per_h: float) -> Candidate:
    return next(one for one in priced([offer(spot_usd_per_h=usd_per_h)]) if one.market is Market.SPOT)


@pytest.mark.parametrize(
    ("machines", "spent", "most_usd", "price", "count"),
    [
        (0, 0.0, math.inf, 0.5, 4),
        (3, 0.0, math.inf, 0.5, 1),
        (5, 0.0, math.inf, 0.5, 0),
        (0, 0.0, 1.5, 0.5, 3),
        (0, 0.2, 1.5, 0.5, 2),
        (0, 2.0, 1.5, 0.5, 0),
        (0, 2.0, 1.5, 0.0, 4),
    ],
)
def test_the_room_is_that_of_the_tighter_limit(
    machines: int, spent: float, most_usd: float, price: float, count: int
) -> None:
    room = RentalRoom(machines=machines, usd_per_h=spent, max_machines=4, max_usd_per_h=most_usd)
    one = candidate(price)
    assert room.count(one) == count
    assert (room.obstacle(one) == "") is (count > 0)
    for _ in range(count):
        room = room.after(one)
    assert room.count(one) == 0
    assert room.obstacle(one)


@pytest.mark.parametrize(
    ("rule", "caps", "most"),
    [
        (None, [], math.inf),
        (2.0, [], 2.0),
        (2.0, [Cap("all", None, 1.5)], 1.5),
        (None, [Cap("all", None, 3.0), Cap("less", None, 2.5)], 2.5),
        (2.0, [Cap("own", "team", 0.1)], 2.0),
    ],
)
def test_the_limit_is_the_lowest_of_the_service_and_the_caps_of_the_cluster(
    rule: float | None, caps: list[Cap], most: float
) -> None:
    fleet = Fleet(machines=rented(ON_DEMAND, 1, 2), nodes={})
    room = room_of(caps, fleet, RentalRules(max_machines=7, max_usd_per_h=rule))
    assert (room.machines, room.usd_per_h, room.max_machines) == (2, 2.0, 7)
    assert room.max_usd_per_h == most
