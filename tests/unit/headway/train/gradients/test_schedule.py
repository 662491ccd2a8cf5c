"""Learning-rate schedules follow the progress: by hand, and over any sequence of gains."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau, StepLR

from headway.train.checkpoint.replica import kind_of
from headway.train.gradients.averaging import Gradients
from headway.train.gradients.clock import Clock
from headway.train.gradients.probe import NoiseProbe
from headway.train.gradients.schedule import OncePerBatch


@pytest.fixture(autouse=True)
def no_complaint_about_the_order_of_steps() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        yield


def made(kind: type[LRScheduler] = StepLR, **options: Any) -> tuple[OncePerBatch, Gradients, LRScheduler]:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    gradients = Gradients(model, device=torch.device("cpu"))
    gradients.probe = NoiseProbe(optimizer)
    scheduler = kind(optimizer, **(options or {"step_size": 10**6}))
    return OncePerBatch(scheduler, gradients), gradients, scheduler


def within(steps: int, worth: float) -> Clock:
    return Clock(steps, worth, 64 * steps, 16.0 * worth, within_step=True)


def between(samples: int, progress: float) -> Clock:
    return Clock(samples // 10, progress / 4, samples, progress)


@pytest.mark.parametrize(
    ("clocks", "steps"),
    [
        ([within(1, 1.0), within(2, 2.0), within(3, 3.0)], [1, 2, 3]),
        ([within(1, 2.5), within(2, 5.0), within(3, 7.5)], [2, 5, 7]),
        ([within(1, 0.5), within(2, 1.0), within(3, 1.5)], [0, 1, 1]),
        ([within(10, 10.0), within(20, 20.0)], [1, 2]),  # once in ten steps
        ([within(10, 20.0), within(20, 40.0)], [2, 4]),
        ([between(100, 100.0), between(200, 200.0)], [1, 2]),
        ([between(100, 80.0), between(200, 160.0), between(300, 240.0)], [0, 1, 2]),
        ([between(200, 200.0), between(400, 400.0)], [1, 2]),  # once in two epochs
        ([between(100, 100.0), between(100, 100.0)], [1, 2]),  # twice in a row
    ],
)
def test_a_call_is_worth_the_progress_since_the_last(clocks: list[Clock], steps: list[int]) -> None:
    stepping, gradients, scheduler = made()
    found = []
    for clock in clocks:
        gradients.clock = clock
        stepping.step()
        found.append(scheduler.last_epoch)
    assert found == steps


@given(st.lists(st.floats(0.0, 8.0), max_size=60))
def test_no_progress_is_lost_or_counted_twice(gains: list[float]) -> None:
    stepping, gradients, scheduler = made()
    worth = 0.0
    for number, gain in enumerate(gains, start=1):
        worth += gain
        gradients.clock = within(number, worth)
        stepping.step()
        assert worth - 1.0 - 1e-6 <= scheduler.last_epoch <= worth + 1e-6


@given(st.integers(0, 30), st.lists(st.floats(0.0, 8.0), min_size=31, max_size=40))
def test_a_restored_schedule_continues_with_the_remainder(at: int, gains: list[float]) -> None:
    stepping, gradients, scheduler = made()
    again, restored, other = made()
    worth = 0.0
    for number, gain in enumerate(gains, start=1):
        worth += gain
        gradients.clock = restored.clock = within(number, worth)
        stepping.step()
        if number > at:
            again.step()
        if number == at:
            again.load_state_dict(stepping.state_dict())
    if at:
        assert other.last_epoch == scheduler.last_epoch == math.floor(worth + 1e-9)


def test_a_state_of_a_constant_batch_is_the_scheduler_s_own() -> None:
    stepping, gradients, scheduler = made()
    gradients.probe = None
    gradients.clock = within(1, 1.0)
    stepping.step()
    assert stepping.state_dict() == scheduler.state_dict()
    again, _, other = made()
    again.load_state_dict(scheduler.state_dict())
    assert other.last_epoch == 1
    restored = again.state_dict()
    again.load_state_dict(restored)
    assert "headway_progress" in restored, "what was loaded is not changed"


def test_a_metric_is_given_once() -> None:
    stepping, gradients, scheduler = made(ReduceLROnPlateau, patience=100)  # type: ignore[arg-type]
    gradients.clock = between(100, 50.0)
    stepping.step(0.5)
    assert scheduler.last_epoch == 1


def test_a_cycle_of_so_many_steps_is_not_exceeded() -> None:
    """It raises an error after its last step."""
    stepping, gradients, scheduler = made(OneCycleLR, max_lr=1.0, total_steps=7)
    for number, worth in enumerate((2.5, 5.0, 6.0), start=1):
        gradients.clock = within(number, worth)
        stepping.step()
    assert scheduler.last_epoch == 6


def test_messages_name_the_scheduler_of_the_script() -> None:
    stepping, _, scheduler = made()
    assert kind_of(stepping) == kind_of(scheduler) == "StepLR"  # type: ignore[arg-type]
