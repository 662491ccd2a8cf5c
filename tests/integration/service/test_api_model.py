"""The API against a model: whatever users, agents and rounds do in any order, states, codes and counts are as they should."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from headway.contract.views.jobs import JobState
from tests.integration.service.api_model import Play
from tests.integration.service.conftest import Harness
from tests.integration.service.crashing import Drawn, check, world_of
from tests.integration.service.model_jobs import ELASTIC, ENDED, NODES

NAMES = ("a", "b", "c")
KEYS = (None, "k1", "k2", "k3")
name = st.sampled_from(NAMES)
node = st.sampled_from(sorted(NODES))
OPERATIONS = st.one_of(
    st.tuples(st.just("submit"), name, st.integers(0, len(ELASTIC) - 1), st.sampled_from(KEYS)),
    st.tuples(st.just("submit"), name, st.integers(0, len(ELASTIC) - 1), st.none()),
    st.tuples(
        st.just("ask"),
        st.sampled_from(["cancel", "pause", "resume", "resize", "resize"]),
        st.sampled_from([*NAMES, "nobody"]),
        st.integers(0, 4),
    ),
    st.tuples(st.just("work"), st.integers(1, 2)),
    st.tuples(st.just("round")),
    st.tuples(st.just("obey"), node),
    st.tuples(st.just("ends"), node, st.integers(0, 2), st.sampled_from(["done", "failed", "killed"])),
    st.tuples(st.just("repeat"), node),
    st.tuples(st.just("stale"), node),
    st.tuples(st.sampled_from(["silence", "back", "back"]), node),
    st.tuples(st.just("page"), st.integers(1, 2)),
)


async def do(play: Play, operation: tuple[object, ...]) -> None:
    match operation:
        case ("work", int(count)):
            for _ in range(count):
                await play.round()
                for one in NODES:
                    await play.obey(one)
        case ("ends", str(where), int(which), str(how)):
            runs = list(play.hands[where].runs.values())
            if where not in play.silent and which < len(runs):
                await play.end(where, runs[which], how)
        case (str(verb), *arguments):
            await getattr(play, verb)(*arguments)
    await play.compare()


async def to_the_end(play: Play) -> None:
    """Left alone, with agents that obey and scripts that finish, everything comes to its end."""
    for one in NODES:
        await play.back(one)
    for _ in range(12):
        play.world.skip(150)
        for one in NODES:
            await play.report(one)
        await play.round()
        for one in NODES:
            await play.obey(one)
        for one in NODES:
            for run in list(play.hands[one].runs.values()):
                if play.by_id(run.job_id).state is JobState.RUNNING:
                    await play.end(one, run, "done")
        await play.compare()
    stuck = {one.name: one.state for one in play.jobs if one.state not in {*ENDED, JobState.PAUSED}}
    assert stuck == {}


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(OPERATIONS, min_size=5, max_size=30))
async def test_the_service_does_as_the_model(harness: Harness, operations: list[tuple[object, ...]]) -> None:
    async with world_of(harness, Drawn()) as world:
        play = Play(world)
        await play.begin()
        for operation in operations:
            note(repr(operation))
            await do(play, operation)
        await to_the_end(play)
        await play.history()
        await check(world)
