"""The parts `parameters` and `sweep` of the job file: bounds, and errors that name the field."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headway.contract.spec import JobSpec
from headway.contract.spec_parameters import variables_of
from headway.contract.spec_sweep import SweepSpec

OK = {"name": "gpt", "run": "python t.py"}
EPOCHS = {"asha": {"min_progress": 1}}
REGEX = {"regex": r"step (?P<step>\d+) loss (?P<loss>[\d.]+)"}


def sweep(parameters: Any = None, **fields: Any) -> dict[str, Any]:
    return {"sweep": {"parameters": parameters or {"lr": [0.1, 0.2]}, **fields}}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (sweep(trials=3), "trials needs search: random"),
        (sweep(seed=3), "seed needs search: random"),
        (sweep(search="random"), "needs trials"),
        (sweep(search="random", trials=3), "trials (3) exceeds the 2 combinations"),
        (sweep({"lr": {"min": 0.1, "max": 1}}), "parameters.lr is a range"),
        (sweep({"a": list(range(100)), "b": list(range(6))}), "600 combinations"),
        (sweep({"lr": [0.1, 0.1]}), "lr lists a value twice"),
        (sweep(stop={"asha": {"min_progress": 1}}), "stop needs metric"),
        (sweep(metric="loss", stop={}), "asha"),
        (sweep(metric="loss", stop={"asha": {"min_progress": 0}}), "greater than or equal to 1"),
        (sweep(metric="loss", stop={"asha": {"min_progress": 1, "reduction": 11}}), "less than or equal to 10"),
        ({**sweep(metric="loss", stop=EPOCHS), "progress": REGEX}, "trials report steps; set unit: steps"),
        (
            {**sweep(metric="loss", stop=EPOCHS), "progress": REGEX, "batch": {"global": 64}},
            "trials report samples; set unit: samples",
        ),
        (sweep({"lr": [1, "1"]}), "lr lists a value twice"),
        (sweep({"lr": [1], "LR": [2]}), "HEADWAY_PARAM_LR"),
        (sweep({"lr": {"min": 2, "max": 1}}, search="random", trials=1), "must be smaller than max"),
        (sweep({"lr": {"min": 0, "max": 1, "log": True}}, search="random", trials=1), "log needs a min above 0"),
        (sweep({"lr": {"min": 0, "max": 2**60}}, search="random", trials=1), "2^53"),
        ({**sweep(), "parameters": {"lr": 1}}, "both in parameters and in sweep.parameters"),
        ({**sweep(), "parameters": {"LR": 1}}, "HEADWAY_PARAM_LR"),
        ({**sweep(), "name": "a" * 60}, "59 characters with sweep"),
        ({**sweep(), "checkpoint": {"from": "other"}}, "checkpoint.from and sweep"),
        ({**sweep(), "goal": {"deadline": "2030-01-01T00:00:00Z", "admit": "reject"}}, "goal.admit: reject and sweep"),
        ({**sweep(), "parameters": {f"p{n}": n for n in range(20)}}, "20 names together"),
    ],
)  # fmt: skip
def test_impossible_sweep_is_refused_with_the_field_in_its_message(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        SweepSpec.model_validate({**OK, **fields})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "place"),
    [
        ({"lr": []}, ("lr",)),
        ({"lr": [True]}, ("lr",)),
        ({"1r": [1]}, ("1r",)),
        ({"lr": [float("inf")]}, ("lr",)),
        ({"lr": {"min": 1, "max": 2, "step": 1}}, ("lr",)),
        ({"lr": 0.1}, ("lr",)),
        ({}, ()),
    ],
)
def test_wrong_value_is_refused_at_its_parameter(parameters: Any, place: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as caught:
        SweepSpec.model_validate({**OK, "sweep": {"parameters": parameters}})
    assert {one["loc"][: 2 + len(place)] for one in caught.value.errors()} == {
        ("sweep", "parameters", *place)
    }


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, float("nan"), 2**63, "x" * 1001, "a\0"])
def test_parameter_of_a_job_is_a_number_or_a_text(value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate({**OK, "parameters": {"lr": value}})
    assert {one["loc"][:2] for one in caught.value.errors()} == {("parameters", "lr")}


def test_truth_value_is_refused_with_the_name_of_its_parameter() -> None:
    with pytest.raises(ValidationError) as caught:
        JobSpec.model_validate({**OK, "parameters": {"lr": 1, "amp": True}})
    (found,) = caught.value.errors()
    assert found["loc"] == ("parameters",)
    assert "amp: must be a number, not true" in found["msg"]


def test_parameters_become_variables_that_read_back_exactly() -> None:
    spec = JobSpec.model_validate(
        {**OK, "parameters": {"lr": 1e-05, "Width": 64, "opt": "adam $HOME", "x": 0.1 + 0.2, "y": "1e-3"}}
    )
    assert variables_of(JobSpec.model_validate_json(spec.model_dump_json()).parameters) == {
        "HEADWAY_PARAM_LR": "1e-05",
        "HEADWAY_PARAM_WIDTH": "64",
        "HEADWAY_PARAM_OPT": "adam $HOME",
        "HEADWAY_PARAM_X": "0.30000000000000004",
        "HEADWAY_PARAM_Y": "1e-3",
    }


@pytest.mark.parametrize(
    ("unit", "more"),
    [
        ("epochs", {}),
        ("steps", {"progress": REGEX}),
        ("steps", {"progress": {**REGEX, "batch": "per-rank"}}),
        ("samples", {"progress": REGEX, "batch": {"global": 64}}),
    ],
)
def test_stop_takes_the_unit_that_the_trials_report(unit: str, more: dict[str, Any]) -> None:
    stop = {"asha": {"min_progress": 5, "unit": unit}}
    spec = SweepSpec.model_validate({**OK, **more, **sweep(metric="loss", stop=stop)})
    assert spec.sweep.stop is not None
    assert (spec.sweep.stop.asha.unit, spec.sweep.stop.asha.reduction) == (unit, 3)
