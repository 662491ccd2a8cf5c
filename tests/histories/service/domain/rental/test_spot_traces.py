"""The rules learn from recorded spot markets: the prior of common losses, and rates by part of the day."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from headway.contract.values.markets import Market
from service.domain.cluster.spot_rate import TOGETHER
from service.domain.rental.machines import Machine, MachineReason, MachineState
from service.domain.rental.spot.hazards import (
    PART_H,
    HazardCounts,
    coming_hazard_per_h,
    hazard_counts,
    hazard_per_h,
)
from service.domain.rental.spot.together import zone_shares
from service.simulation.model.profiles import data_folder
from service.simulation.model.spot import read_spot
from service.simulation.model.world import BadInput

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PRIOR_PER_H = 0.1


@pytest.fixture(scope="module")
def traces() -> Path:
    try:
        return data_folder() / "spot"
    except BadInput as error:
        pytest.skip(f"no recorded markets here: {error}")


def leases_of(file: Path, days: float = math.inf) -> list[Machine]:
    """Return the leases of a job that holds every machine of a trace. The newest machine goes first."""
    trace = read_spot(file)
    held: list[datetime] = []
    found: list[Machine] = []
    for tick, count in enumerate(
        trace.available[: int(min(days * 86_400 / trace.gap_s, len(trace.available)))]
    ):
        at = BEGIN + timedelta(seconds=tick * trace.gap_s)
        while len(held) > count:
            found.append(_lease(len(found), held.pop(), at))
        held += [at] * (count - len(held))
    return found


def _lease(number: int, began: datetime, ended: datetime) -> Machine:
    return Machine(
        id=f"m{number}",
        provider="p",
        region="r",
        instance_type="t",
        device_kind="k",
        slots=1,
        market=Market.SPOT,
        usd_per_h=1.0,
        state=MachineState.GONE,
        reason=MachineReason.SPOT_RECLAIMED,
        message="",
        requested_at=began,
        state_since=ended,
        billed_from=began,
        billed_to=ended,
    )


def test_the_prior_of_common_losses_is_that_of_the_traces_with_several_machines(traces: Path) -> None:
    shares = []
    for file in sorted(traces.glob("*/[14]*-node/*/*.json")):
        if file.parts[-3] == "1-node":
            continue
        leases = leases_of(file)
        assert leases
        now = max(one.state_since for one in leases)
        shares.append(zone_shares(leases, now).share("p", "r"))
    assert len(shares) == 6
    assert float(np.median(shares)) == pytest.approx(TOGETHER, abs=0.15)
    assert max(shares) > 2 * min(shares), "zones differ, so the share is learned"


def test_parts_of_the_day_predict_interruptions_better_than_one_rate(traces: Path) -> None:
    """Predict each four hours from all before them, by a Poisson distribution of the losses."""
    gains = []
    for file in sorted((traces / "availability/1-node/aws-10-26-2022").glob("*.json")):
        leases = leases_of(file, days=16)
        gain, end_h = 0.0, 16 * 24
        for hour in range(5 * 24, end_h, PART_H):
            now, until = BEGIN + timedelta(hours=hour), BEGIN + timedelta(hours=hour + PART_H)
            known = [one for one in leases if one.state_since <= now]
            seen = hazard_counts(known, now).get(("p", "t", "r"), HazardCounts())
            lost = sum(now < one.state_since <= until for one in leases)
            present_h = sum(_overlap_h(one, now, until) for one in leases)
            one_rate, of_part = hazard_per_h(PRIOR_PER_H, seen), coming_hazard_per_h(PRIOR_PER_H, seen, now)
            gain += lost * math.log(of_part / one_rate) - present_h * (of_part - one_rate)
        gains.append(gain)
    assert sum(gains) > 0
    assert sum(one > 0 for one in gains) > len(gains) / 2


def _overlap_h(lease: Machine, since: datetime, until: datetime) -> float:
    assert lease.billed_from is not None
    return max((min(lease.state_since, until) - max(lease.billed_from, since)).total_seconds(), 0.0) / 3600
