"""Random scripts under random changes, losses, pauses and restarts: right weights, or a sentence that names the cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.elastic.behaviours import Behaviour
from tests.elastic.harness import Job
from tests.elastic.plays import Event, Play, perform, random_play

QUICK = (3, 4, 6)
LONG = range(100, 160)


@pytest.mark.parametrize("seed", [*QUICK, *(pytest.param(one, marks=pytest.mark.slow) for one in LONG)])
def test_random_script_ends_with_right_weights_or_names_the_cause(job: Callable[..., Job], seed: int) -> None:
    play = random_play(seed)
    verdict = perform(play, job)
    assert verdict.is_right, f"{play}\n{verdict.fault} {verdict.unreadable}\n{verdict.detail}"


@pytest.mark.parametrize("setting", ["once", "extra", "replaced", "device"])
def test_settings_of_modules_are_those_of_the_ranks_that_train(job: Callable[..., Job], setting: str) -> None:
    events = (
        Event("change", (0,), 1),
        Event("change", (1,), 1),
        Event("lose", (1,)),
        Event("crash", joining=1),
    )
    play = Play(0, Behaviour(setting=setting, setting_at=1, max_local=5), 1, events)
    verdict = perform(play, job)
    assert verdict.is_right, verdict.detail
    assert not verdict.said


def test_a_buffer_that_newcomers_lack_is_named(job: Callable[..., Job]) -> None:
    events = (Event("change", (0,), 1),)
    verdict = perform(Play(0, Behaviour(setting="buffer", setting_at=1), 1, events), job)
    assert verdict.is_right, verdict.detail
    assert "late_mask" in verdict.said
