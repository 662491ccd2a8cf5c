"""The state of a model in stages is the union of the stages' states."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from headway.train.checkpoint.stages import join_stages
from headway.train.checkpoint.staging import split


def state_of(stage: int, names: list[str]) -> dict[str, Any]:
    model = OrderedDict((name, torch.full((2,), float(stage))) for name in names)
    model._metadata = {name: {"version": stage} for name in names}  # type: ignore[attr-defined]
    return {
        "objects": [
            model,
            {
                "state": {name: {"exp_avg": torch.ones(2), "step": 3} for name in names},
                "param_groups": [{"lr": 0.1, "params": names}, {"lr": 0.2, "params": []}],
            },
        ],
        "place": {"steps": 4, "stage": stage},
    }


def test_a_state_is_the_union_of_those_of_all_stages() -> None:
    taken = [split(state_of(stage, names)) for stage, names in enumerate((["a", "b"], ["c"]))]
    tensors = {name: one for _, of_stage in taken for name, one in of_stage.items()}
    whole = join_stages([tree for tree, _ in taken], tensors)
    model, optimizer = whole["objects"]
    assert {name: float(one[0]) for name, one in model.items()} == {"a": 0.0, "b": 0.0, "c": 1.0}
    assert model._metadata == {"a": {"version": 0}, "b": {"version": 0}, "c": {"version": 1}}
    assert set(optimizer["state"]) == {"a", "b", "c"}
    assert optimizer["param_groups"] == [{"lr": 0.1, "params": ["a", "b", "c"]}, {"lr": 0.2, "params": []}]
    assert whole["place"] == {"steps": 4, "stage": 0}


def test_tensors_of_other_stages_are_left_out() -> None:
    taken = [split(state_of(stage, names)) for stage, names in enumerate((["a", "b"], ["c"]))]
    part = join_stages([tree for tree, _ in taken], taken[1][1])
    assert list(part["objects"][0]) == ["c"]
    assert part["objects"][1]["state"]["a"] == {"step": 3}
    assert part["objects"][1]["state"]["c"]["step"] == 3
    assert len(part["objects"][1]["state"]["c"]["exp_avg"]) == 2
