"""The one clock: it follows the database's, and nothing that happens to this machine's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from service.adapters.postgres.engine.clock import STEP, DatabaseClock

START = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


class Rig:
    """A database whose clock is set as the test likes, and a way to it that takes its time."""

    def __init__(self, wall: datetime = START) -> None:
        self.elapsed_s = 1000.0
        self.ahead = timedelta()
        """Lead of the database's clock."""
        self.there_s = self.back_s = 0.0
        self.clock = DatabaseClock(self.read, elapsed_s=lambda: self.elapsed_s, wall=lambda: wall)

    @property
    def true(self) -> datetime:
        return START + timedelta(seconds=self.elapsed_s - 1000.0) + self.ahead

    async def read(self) -> datetime:
        self.elapsed_s += self.there_s
        said = self.true
        self.elapsed_s += self.back_s
        return said


async def test_before_the_first_look_it_is_this_machines() -> None:
    rig = Rig(wall=START + timedelta(hours=3))
    rig.elapsed_s += 5
    assert rig.clock.now() == START + timedelta(hours=3, seconds=5)


async def test_a_wrong_wall_clock_does_not_matter() -> None:
    for off_h in (-5, 5):
        rig = Rig(wall=START + timedelta(hours=off_h))
        await rig.clock.look()
        assert rig.clock.now() == rig.true
        rig.elapsed_s += 60
        assert rig.clock.now() == rig.true, "between two looks it goes on"


async def test_it_follows_at_once_when_the_databases_clock_is_set() -> None:
    rig = Rig()
    await rig.clock.look()
    for hours in (1, -1):
        rig.ahead += timedelta(hours=hours)
        await rig.clock.look()
        assert rig.clock.now() == rig.true


async def test_small_corrections_never_take_it_back() -> None:
    rig = Rig()
    await rig.clock.look()
    before = rig.clock.now()
    rig.ahead = -STEP / 2
    await rig.clock.look()
    assert rig.clock.now() == before
    rig.elapsed_s += 10
    assert rig.clock.now() == rig.true


@given(st.lists(st.tuples(st.floats(0, 0.4), st.floats(0, 0.4), st.floats(0, 5))))
async def test_a_slow_way_shifts_it_by_less_than_its_time(ways: list[tuple[float, float, float]]) -> None:
    rig = Rig()
    await rig.clock.look()
    latest = rig.clock.now()
    for there_s, back_s, rest_s in ways:
        rig.there_s, rig.back_s = there_s, back_s
        await rig.clock.look()
        assert abs(rig.clock.now() - rig.true) <= timedelta(microseconds=50)
        assert rig.clock.now() >= latest
        latest = rig.clock.now()
        rig.elapsed_s += rest_s
