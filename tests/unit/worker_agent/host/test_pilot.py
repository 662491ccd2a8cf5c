"""Notices of Slurm to an agent in a batch job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headway.errors import HeadwayError
from worker_agent.host.pilot import Pilot, PilotLimits, labels, pilot_limits

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


def test_first_sigterm_gives_the_time_of_the_kill_and_a_second_changes_nothing() -> None:
    times = iter([NOW, NOW + timedelta(seconds=20)])
    pilot = Pilot(PilotLimits(kill_wait_s=30.0, ends_at=None), lambda: next(times))
    assert not pilot.ends
    pilot.terminated()
    pilot.terminated()
    assert [one.reclaim_at for one in pilot.notices()] == [NOW + timedelta(seconds=30)]
    assert pilot.ends


@pytest.mark.parametrize(("before_s", "notices"), [(181, 0), (180, 1), (0, 1)])
def test_time_limit_is_a_notice_three_minutes_ahead(before_s: float, notices: int) -> None:
    pilot = Pilot(PilotLimits(30.0, NOW), lambda: NOW - timedelta(seconds=before_s))
    assert [one.reclaim_at for one in pilot.notices()] == [NOW] * notices
    assert not pilot.ends


def test_limits_come_from_the_script_and_from_slurm() -> None:
    env = {"HEADWAY_KILL_WAIT_S": "45", "SLURM_JOB_END_TIME": str(int(NOW.timestamp()))}
    assert pilot_limits(env) == PilotLimits(45.0, NOW)
    assert pilot_limits({"HEADWAY_PILOT_TIMES": "2026-11-01T11:58:00 2026-11-01T12:00:00"}) == PilotLimits(
        30.0, NOW, notice_s=30.0
    )
    assert pilot_limits({"HEADWAY_PILOT_TIMES": "2026-11-01T11:58:00 NONE"}) == PilotLimits(30.0, None)
    assert pilot_limits({}) == PilotLimits(30.0, None)
    with pytest.raises(HeadwayError, match="HEADWAY_KILL_WAIT_S"):
        pilot_limits({"HEADWAY_KILL_WAIT_S": "soon"})


@pytest.mark.parametrize(
    ("address", "pattern", "found"),
    [
        ("core.leaf7.n3", "switch.switch.node", {"rack": "leaf7"}),
        ("block2.n3", "block.node", {"nvlink": "block2"}),
        ("n3", "node", {}),
        ("core.leaf 7.n3", "switch.switch.node", {}),
        ("", "", {}),
    ],
)
def test_label_comes_from_the_part_before_the_node(address: str, pattern: str, found: dict[str, str]) -> None:
    assert labels({"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}) == found
