"""Tests of the probe: which steps it measures, and the time that it reports for a measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from headway.train.gradients.averaging import Gradients
from headway.train.gradients.noise import from_two_batches
from headway.train.gradients.probe import NoiseProbe


class Time:
    """A clock that only the test moves, by `ticks_s` at each look."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.ticks_s = 0.0

    def __call__(self) -> float:
        self.now_s += self.ticks_s
        return self.now_s


def parameters() -> list[nn.Parameter]:
    one = nn.Parameter(torch.zeros(3))
    one.grad = torch.ones(3)
    return [one]


def probe_of(clock: Time) -> tuple[NoiseProbe, list[nn.Parameter]]:
    mine = parameters()
    return NoiseProbe(torch.optim.SGD(mine, lr=0.1), clock=clock), mine


def gradients_in(clock: Time, seconds: float) -> Sequence[Tensor]:
    clock.now_s += seconds
    return [torch.full((3,), 0.5)]


@pytest.mark.parametrize(
    "parts", [("first", "second"), ("second", "first"), ("first", "both"), ("both", "both")]
)
@pytest.mark.parametrize("clips", [False, True])
def test_a_lone_rank_measures_parameters_that_its_last_passes_do_not_reach(
    parts: tuple[str, str], *, clips: bool
) -> None:
    model = nn.ModuleDict({"first": nn.Linear(3, 1, bias=False), "second": nn.Linear(3, 1, bias=False)})
    gradients = Gradients(model, device=torch.device("cpu"))
    probe = gradients.probe = NoiseProbe(torch.optim.SGD(model.parameters(), lr=0.1))
    probe.begin(measures=True)
    rows = torch.arange(24.0).view(8, 3)
    expected = {name: torch.zeros(3) for name in model}
    squares = []
    for number, used in enumerate(parts):
        gradients.begin(4, global_batch=8, first=number == 0, last=number == 1)
        mine = rows[4 * number : 4 * number + 4]
        names = list(model) if used == "both" else [used]
        torch.stack([model[name](mine).mean() for name in names]).sum().backward()
        for name in names:
            expected[name] += mine.mean(0)
        squares.append(sum(float(one.square().sum()) for one in expected.values()) / (number + 1) ** 2)
    if clips:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    assert gradients.accept()
    right = from_two_batches(squares[0], 4, squares[1], 8)
    assert probe.measurement is not None
    assert (probe.measurement.sqr, probe.measurement.var) == pytest.approx((right.sqr, right.var), rel=1e-5)


def test_a_step_without_a_measurement_makes_no_lists() -> None:
    clock = Time()
    probe, mine = probe_of(clock)
    made: list[int] = []
    probe.begin(measures=False)
    probe.local(lambda: made.append(1) or [], lambda: mine)
    probe.whole(mine, share=0.5, samples=8, alone=False)
    assert (made, probe.square, probe.squared_mean, probe.cost) == ([], 0.0, 0.0, 0.0)
    probe.begin(measures=True)
    probe.local(lambda: made.append(1) or [], lambda: mine)
    assert made == [1]


def test_the_cost_with_peers_is_in_steps_without_a_measurement() -> None:
    clock = Time()
    probe, mine = probe_of(clock)
    probe.begin(measures=True)
    probe.local(lambda: gradients_in(clock, 1.0), lambda: mine)
    probe.whole(mine, share=0.5, samples=8, alone=False)
    assert (probe.square, probe.squared_mean) == (pytest.approx(0.75 / 0.5), pytest.approx(3.0))
    assert probe.cost == 0.0, "no step without a measurement is known yet"
    for _ in range(2):
        clock.now_s += 4.0
        probe.begin(measures=False)
    clock.now_s += 4.0
    probe.begin(measures=True)
    assert (probe.square, probe.squared_mean, probe.cost) == (0.0, 0.0, 0.0)
    probe.local(lambda: gradients_in(clock, 0.5), lambda: mine)
    clock.now_s += 3.0  # the script's own work
    probe.local(lambda: gradients_in(clock, 0.5), lambda: mine)
    probe.whole(mine, share=0.5, samples=8, alone=False)
    assert probe.cost == pytest.approx(0.25)
    probe.begin(measures=False)
    assert probe.cost == 0.0


def test_steps_of_a_pair_are_not_the_measure_of_its_cost() -> None:
    """Steps take 4 s, and those from the first pair on 9 s."""
    clock = Time()
    probe, mine = probe_of(clock)
    for step in range(7):
        probe.begin(measures=step in (3, 5))
        clock.now_s += 9.0 if step >= 3 else 4.0
        clock.ticks_s = 1.0 if step == 6 else 0.0  # the second half of the second measurement takes 1 s
        probe.whole(mine, share=1.0, samples=4, alone=True)
    assert probe.cost == pytest.approx(0.25)


def test_a_rank_alone_compares_the_requested_step_with_the_next() -> None:
    clock = Time()
    probe, mine = probe_of(clock)
    found = []
    for step in range(10):
        probe.begin(measures=step in (0, 4))
        probe.whole(mine, share=1.0, samples=4, alone=True)
        found.append(probe.measurement is not None)
    assert [step for step, one in enumerate(found) if one] == [1, 5]


def test_an_accumulating_rank_measures_halfway() -> None:
    clock = Time()
    probe, mine = probe_of(clock)
    probe.begin(measures=False)
    probe.halfway(mine, 1.0, 4)
    probe.whole(mine, share=1.0, samples=8, alone=True)
    assert probe.measurement is None
    probe.begin(measures=True)
    probe.halfway(mine, 2.0, 4)  # |2 * 1|^2 = 12 for 4 samples, 3 for 8
    probe.whole(mine, share=1.0, samples=8, alone=True)
    assert probe.measurement is not None
    assert probe.measurement.var == pytest.approx((12 - 3) / (1 / 4 - 1 / 8))


def test_a_pair_ends_when_peers_come() -> None:
    clock = Time()
    probe, mine = probe_of(clock)
    probe.begin(measures=True)
    probe.whole(mine, share=1.0, samples=4, alone=True)
    probe.begin(measures=False)
    probe.whole(mine, share=0.5, samples=8, alone=False)
    probe.begin(measures=False)
    probe.whole(mine, share=1.0, samples=4, alone=True)
    assert probe.measurement is None


def test_adam_is_measured_once_its_scale_is_usable() -> None:
    clock = Time()
    mine = parameters()
    optimizer = torch.optim.Adam(mine, lr=0.1)
    probe = NoiseProbe(optimizer, clock=clock)
    squares = []
    for _ in range(12):
        probe.begin(measures=True)
        probe.local(lambda: [torch.full((3,), 0.5)], lambda: mine)
        probe.whole(mine, share=0.5, samples=8, alone=False)
        squares.append(probe.square)
        optimizer.step()
    assert [bool(one) for one in squares] == [False] * 10 + [True] * 2


@pytest.mark.parametrize(("make", "measured"), [(torch.optim.SGD, True), (torch.optim.AdamW, False)])
def test_successive_steps_are_compared_for_sgd_only(
    make: Callable[..., torch.optim.Optimizer], measured: bool
) -> None:
    mine = parameters()
    optimizer = make(mine, lr=0.1)
    probe = NoiseProbe(optimizer, clock=Time())
    found = []
    for _ in range(20):
        probe.begin(measures=True)
        probe.whole(mine, share=1.0, samples=4, alone=True)
        found.append(probe.measurement)
        optimizer.step()
    assert any(one is not None for one in found) == measured
