"""The guard of replicas: what it reads, how it names a difference, and how often it checks."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from headway.train.state.guard import (
    COST_SHARE,
    ReplicaGuard,
    ReplicaReading,
    StepCount,
    differences,
    interval_steps,
    local_remedy,
    read_replica,
)
from tests.unit.headway.train.kept import Kept


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))


def _read(model: nn.Module, rate: float = 0.1) -> ReplicaReading:
    return read_replica(model, [torch.optim.SGD(model.parameters(), lr=rate)])


def test_readings_of_equal_replicas_are_equal() -> None:
    assert _read(_model()).digest == _read(_model()).digest
    assert differences([_read(_model()), _read(_model())]) == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_reading_with_one_changed_element_names_parameter_and_rank(dtype: torch.dtype) -> None:
    mine, theirs = _model().to(dtype), _model().to(dtype)
    with torch.no_grad():
        list(theirs.parameters())[2][0, 3] += 0.25
    every = [_read(mine), _read(mine), _read(theirs)]
    assert every[0].digest != every[2].digest
    assert differences(every) == ["1.weight differs on rank 2"]


def test_differing_rates_are_named_with_both_values_before_their_weights() -> None:
    mine, theirs = _model(), _model()
    with torch.no_grad():
        theirs[1].bias += 1.0
    assert differences([_read(mine, 0.1), _read(theirs, 0.05)]) == [
        "learning rate 0.0 is 0.1 on rank 0, 0.05 on rank 1",
        "1.bias differs on rank 1",
    ]


def test_other_settings_of_a_group_are_named_as_the_cause() -> None:
    mine, theirs = _model(), _model()
    with torch.no_grad():
        theirs[1].bias += 1.0
    every = [
        read_replica(one, [torch.optim.Adam(one.parameters(), betas=(beta, 0.9))])
        for one, beta in ((mine, 0.5), (theirs, 0.6))
    ]
    assert differences(every) == [
        "betas 0.0 is [0.5, 0.9] on rank 0, [0.6, 0.9] on rank 1",
        "1.bias differs on rank 1",
    ]


def test_parameter_that_another_optimizer_trains_is_named_as_such() -> None:
    mine, theirs = _model(), _model()
    with torch.no_grad():
        theirs[1].bias += 1.0
    every = [read_replica(one, [torch.optim.SGD(one[0].parameters())]) for one in (mine, theirs)]
    assert differences(every) == ["1.bias, which no optimizer given to prepare() has, differs on rank 1"]


def test_parameter_unfrozen_on_one_rank_is_named() -> None:
    mine, theirs = _model(), _model()
    mine[0].bias.requires_grad = False
    assert differences([_read(mine), _read(theirs)]) == ["0.bias requires a gradient only on rank 1"]


def test_equal_rates_that_are_not_numbers_do_not_differ() -> None:
    assert differences([_read(_model(), math.nan)] * 2) == []
    assert _read(_model(), math.nan).digest == _read(_model(), math.nan).digest


@pytest.mark.parametrize(
    ("cost_s", "trained_s", "step_s"), [(0.001, 0.02, 0.003), (0.01, 0.0, 0.05), (0.5, 600.0, 2.0)]
)
def test_interval_keeps_checks_within_their_share(cost_s: float, trained_s: float, step_s: float) -> None:
    steps = interval_steps(cost_s, trained_s, step_s)
    assert steps >= 1
    assert cost_s <= COST_SHARE * (trained_s + steps * step_s) * (1 + 1e-9)
    assert steps == 1 or cost_s > COST_SHARE * (trained_s + (steps - 1) * step_s) * (1 - 1e-9)


@pytest.mark.parametrize("local", [["1.bias"], ["*.bias"], ["0.*", "1.b*"]])
def test_local_parameter_that_differs_is_not_compared(local: list[str]) -> None:
    mine, theirs = _model(), _model()
    theirs[1].bias = nn.Parameter(theirs[1].bias + 1.0, requires_grad=False)
    assert len(differences([_read(mine), _read(theirs)])) == 2
    every = [read_replica(one, [], local=local) for one in (mine, theirs)]
    assert differences(every) == []
    assert every[0].digest == every[1].digest


def test_parameter_beside_the_local_ones_that_differs_is_named() -> None:
    mine, theirs = _model(), _model()
    with torch.no_grad():
        theirs[1].bias += 1.0
        theirs[1].weight += 1.0
    assert differences([read_replica(one, [], local=["*.bias"]) for one in (mine, theirs)]) == [
        "1.weight differs on rank 1"
    ]


def test_local_buffer_of_sync_batch_norm_that_differs_is_not_compared() -> None:
    mine, theirs = nn.Sequential(nn.SyncBatchNorm(3)), nn.Sequential(nn.SyncBatchNorm(3))
    theirs[0].running_mean += 1.0  # type: ignore[operator]
    assert differences([_read(mine), _read(theirs)]) == ["0.running_mean differs on rank 1"]
    assert differences([read_replica(one, [], local=["*.running_mean"]) for one in (mine, theirs)]) == []


def test_local_parameter_of_a_further_module_that_differs_is_not_compared() -> None:
    readings = []
    for value in (0.0, 1.0):
        average = nn.Linear(1, 1, bias=False)
        nn.init.constant_(average.weight, value)
        others = {"object 2": average}
        readings.append(
            [read_replica(_model(), [], others=others, local=local) for local in ([], ["object 2, *"])]
        )
    (all_first, first), (all_second, second) = readings
    assert differences([all_first, all_second]) == ["object 2, weight differs on rank 1"]
    assert differences([first, second]) == []


def _read_kept(state: dict[str, Any], *, model: nn.Module | None = None) -> ReplicaReading:
    return read_replica(model or _model(), [], others={"object 2": Kept(state)})


def test_tensors_at_any_depth_of_an_object_s_state_are_compared_by_their_paths() -> None:
    def state(value: float) -> dict[str, Any]:
        return {"decay": value, "shadow": {"a": [torch.ones(2), (torch.tensor(value),)]}, "n": torch.zeros(0)}

    every = [_read_kept(state(one)) for one in (0.0, 0.0, 1.0)]
    assert every[0].digest == every[1].digest != every[2].digest
    assert differences(every) == ["object 2, shadow.a.1.0 differs on rank 2"]


def test_state_that_contains_itself_is_read_once() -> None:
    state: dict[str, Any] = {"mean": torch.ones(2)}
    state["self"] = state
    assert "object 2, mean" in _read_kept(state).sums


@pytest.mark.parametrize("place", [lambda state: state, lambda state: {"ema": state}])
def test_copy_of_a_buffer_that_may_differ_may_differ_too(place: Callable[[Any], dict[str, Any]]) -> None:
    readings = []
    for value in (0.0, 1.0):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        for one in model.parameters():
            nn.init.constant_(one, 0.5)
        nn.init.constant_(model.get_buffer("1.running_mean"), value)
        readings.append(_read_kept(place(dict(model.state_dict())), model=model))
    assert differences(readings) == []
    assert any(name.endswith("0.weight") for name in readings[0].sums if name.startswith("object 2"))


def test_pattern_of_an_object_whose_state_has_no_tensor_yet_is_no_error() -> None:
    ReplicaGuard(_model(), [], others={"object 2": Kept({})}, local=["object 2, shadow.*"])


def test_local_pattern_that_matches_nothing_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"local='bias', which matches no parameter"):
        ReplicaGuard(_model(), [], others={}, local=["bias"])


def test_optimizer_that_stepped_more_often_on_one_rank_is_named() -> None:
    readings = []
    for steps in (1, 2):
        model = _model()
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
        count = StepCount(optimizers)
        optimizers[0].step()
        count.restart()
        for _ in range(steps):
            optimizers[1].step()
        readings.append(read_replica(model, optimizers, steps=count.steps))
    assert readings[0].digest != readings[1].digest
    assert differences(readings) == [
        "steps of optimizer 1 since the last change of members are 1 on rank 0, 2 on rank 1"
    ]


def _read_numbers(
    rate: float, *, near: bool, dtype: torch.dtype = torch.float32, **numbers: Any
) -> ReplicaReading:
    model = _model().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    optimizer.param_groups[0].update(numbers)
    return read_replica(model, [optimizer], near=near)


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        ({"d": 1e-6}, {"d": 1.000001e-6}, torch.float32),
        ({"d": math.nan, "k": 3}, {"d": math.nan, "k": 3}, torch.float32),
        ({"d": 1e-6}, {"d": 1.05e-6}, torch.bfloat16),
        ({"pair": (0.5, 0.25)}, {"pair": (0.5, 0.2501)}, torch.float32),
    ],
)
def test_numbers_of_a_group_that_round_differently_are_equal_on_devices_of_two_kinds_alone(
    first: dict[str, Any], second: dict[str, Any], dtype: torch.dtype
) -> None:
    numbers = (first, second)
    assert not differences([_read_numbers(0.1, near=True, dtype=dtype, **one) for one in numbers])
    exact = differences([_read_numbers(0.1, near=False, dtype=dtype, **one) for one in numbers])
    assert len(exact) == int("k" not in first)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"d": 1e-6}, {"d": 1.05e-6}, "d 0.0 is 1e-06 on rank 0, 1.05e-06 on rank 1"),
        ({"d": 1.0}, {"d": math.nan}, "d 0.0 is 1.0 on rank 0, nan on rank 1"),
        ({"d": math.inf}, {"d": 1.0}, "d 0.0 is inf on rank 0, 1.0 on rank 1"),
        ({"d": 1.0}, {}, "d 0.0 is 1.0 on rank 0, None on rank 1"),
        ({"k": 1000}, {"k": 1001}, "k 0.0 is 1000.0 on rank 0, 1001.0 on rank 1"),
        ({"on": True}, {"on": False}, "on 0.0 is 1.0 on rank 0, 0.0 on rank 1"),
    ],
)
def test_numbers_of_a_group_that_differ_by_more_than_rounding_are_named_on_devices_of_two_kinds(
    first: dict[str, Any], second: dict[str, Any], said: str
) -> None:
    assert differences([_read_numbers(0.1, near=True, **one) for one in (first, second)]) == [said]


def test_rate_set_by_rank_is_found_on_devices_of_two_kinds() -> None:
    assert not differences([_read_numbers(rate, near=True) for rate in (0.1, 0.100001)])
    assert differences([_read_numbers(rate, near=True) for rate in (0.1, 0.1005)]) == [
        "learning rate 0.0 is 0.1 on rank 0, 0.1005 on rank 1"
    ]


def test_remedy_names_tensors_as_patterns_and_of_many_their_objects() -> None:
    assert local_remedy(["object 2, seen[0]"]) == (
        'if that is meant, write prepare(..., local=["object 2, seen[[]0]"])'
    )
    many = [f"object 2, {number}" for number in range(4)]
    assert local_remedy([*many, "object 3, n"]).endswith('local=["object 2, *", "object 3, *"])')
