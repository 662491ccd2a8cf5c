from __future__ import annotations

import ast
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headway.train
from headway.train.checkpoint.replica import Place, Replica, random_state, set_random_state
from headway.train.checkpoint.staging import UnreadableValue, join, split
from headway.train.data.ledger import Ledger
from headway.train.data.position import Position
from tests.unit.headway.train.kept import Kept


def objects(*, width: int = 3) -> list[Any]:
    model = nn.Linear(width, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return [model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])]


PLACE = Place(Position(2, 30), Ledger(30, 400, 2**61 - 1), dataset_samples=100, seed=4)


def kept(replica: Replica) -> Any:
    return join(*split(replica.state(PLACE)))


def test_a_state_can_be_taken_over() -> None:
    torch.manual_seed(0)
    saved, fresh = objects(), objects()
    assert Replica(fresh).take_over(kept(Replica(saved))) == PLACE
    assert PLACE.samples == 230
    torch.testing.assert_close(fresh[0].state_dict(), saved[0].state_dict())
    assert str(fresh[1].state_dict()) == str(saved[1].state_dict())
    assert fresh[2].state_dict() == saved[2].state_dict()
    assert not Replica(saved).is_sharded


def test_an_optimizer_without_a_state_can_be_taken_over() -> None:
    model = nn.Linear(3, 1)
    replica = Replica([model, torch.optim.SGD(model.parameters(), lr=0.1)])
    assert replica.take_over(kept(replica)) == PLACE


def test_other_objects_are_refused() -> None:
    state = kept(Replica(objects()))
    with pytest.raises(ValueError, match="holds 3 objects, but prepare\\(\\) was given 2"):
        Replica(objects()[:2]).take_over(state)
    with pytest.raises(RuntimeError, match="size mismatch") as refused:
        Replica(objects(width=4)).take_over(state)
    assert "does not fit this Linear" in refused.value.__notes__[0]


def test_optimizer_with_fewer_groups_than_saved_is_refused_with_both_numbers() -> None:
    saved = objects()
    saved[1].add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    with pytest.raises(ValueError, match="AdamW had 2 parameter groups when it was saved, and has 1 here"):
        Replica(objects()).take_over(kept(Replica(saved)))


@pytest.mark.parametrize("trained", [["weight"], ["bias"], []])
def test_parameters_that_train_are_those_of_the_saved_model(trained: list[str]) -> None:
    saved, fresh = objects(), objects()
    for name, one in saved[0].named_parameters():
        one.requires_grad_(name in trained)
    Replica(fresh).take_over(kept(Replica(saved)))
    assert [name for name, one in fresh[0].named_parameters() if one.requires_grad] == trained


def test_checkpoint_of_an_older_library_leaves_what_trains() -> None:
    fresh = objects()
    fresh[0].bias.requires_grad_(False)
    state = kept(Replica(objects()))
    del state["frozen"]
    Replica(fresh).take_over(state)
    assert not fresh[0].bias.requires_grad


class Careless:
    """Its state could only be read back by running code."""

    def state_dict(self) -> dict[str, Any]:
        return {"rate": np.float64(0.5), "path": Careless}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        raise AssertionError


def test_a_state_that_could_not_be_read_back_is_refused_at_once() -> None:
    Replica(objects()).check()
    with pytest.raises(TypeError, match="the state of Careless cannot be kept"):
        Replica([*objects(), Careless()]).check()


def _cyclic_dictionary() -> dict[str, Any]:
    state: dict[str, Any] = {"mean": torch.ones(2), "more": {"deep": []}}
    state["more"]["deep"].append(state["more"])
    return state


def _cyclic_list() -> dict[str, Any]:
    history: list[Any] = [1.0]
    history.append((history,))
    return {"history": history}


def _deep() -> dict[str, Any]:
    state: dict[str, Any] = {}
    for _ in range(5000):
        state = {"of": state}
    return state


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_cyclic_dictionary, "(more.deep.0 contains itself; keep "),
        (_cyclic_list, "(history.1.0 contains itself; keep "),
        (_deep, "is nested too deeply"),
    ],
)
def test_a_state_that_refers_to_itself_is_refused_by_object_and_key(
    make: Callable[[], dict[str, Any]], said: str
) -> None:
    kept = Kept(make())
    with pytest.raises(TypeError, match="the state of Kept cannot be kept") as refused:
        Replica([*objects(), kept]).check()
    assert said in str(refused.value)
    with pytest.raises(UnreadableValue) as later:
        split(Replica([*objects(), kept]).state(Place()))
    assert said.removeprefix("(") in str(later.value)


def test_a_value_that_occurs_twice_is_kept_twice() -> None:
    shared = [torch.ones(2), 3]
    Replica([*objects(), Kept({"one": shared, "other": {"same": shared}})]).check()


def test_a_value_that_became_unreadable_is_named_by_object_and_key() -> None:
    replica = Replica(objects())
    replica.optimizer.param_groups[0]["lr"] = np.ones(1)
    with pytest.raises(UnreadableValue) as refused:
        split(replica.state(Place()))
    explained = str(replica.explained(refused.value))
    kind = type(replica.optimizer).__name__
    assert f"the state of {kind} cannot be kept" in explained
    assert "(param_groups.0.lr is a numpy.ndarray, which" in explained


def draw() -> list[float]:
    generator = np.random.mtrand._rand
    return [
        random.random(),
        random.gauss(0, 1),
        generator.random_sample(),
        generator.normal(),
        float(torch.rand(1)),
    ]


def test_random_numbers_go_on_where_they_were() -> None:
    draw()
    state = join(*split(random_state()))
    expected = draw()
    assert draw() != expected
    set_random_state(state)
    assert draw() == expected


@pytest.mark.parametrize(
    ("place", "samples", "said"),
    [
        (Place(Position(2, 0), dataset_samples=100, seed=4), 108, "the data have changed"),
        (Place(Position(2, 0), dataset_samples=100, seed=4), 100, ""),
        (Place(dataset_samples=100, seed=4), 108, ""),
    ],
    ids=["longer", "equal", "first epoch"],
)
def test_data_that_changed_between_epochs_are_named(
    place: Place, samples: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.with_data(samples, 4).dataset_samples == samples
    stderr = capsys.readouterr().err
    assert (said in stderr) if said else not stderr


def test_the_generators_are_read_on_the_host_whatever_device_torch_creates_on() -> None:
    with torch.device("meta"):
        state = random_state()
        set_random_state(state)
        assert state["python"][1].device.type == "cpu"


def test_an_optimizer_is_saved_without_parameters_that_the_script_has_taken_out() -> None:
    model, optimizer, _ = saved = objects()
    kept_state, out = optimizer.state[model.weight], optimizer.param_groups[0]["params"].pop()
    taken = objects()
    taken[1].param_groups[0]["params"].pop()
    Replica(taken).take_over(kept(Replica(saved)))
    torch.testing.assert_close(dict(taken[1].state[taken[0].weight]), dict(kept_state))
    assert out in optimizer.state, "the script may give it back"


_FACTORIES = {"tensor", "as_tensor", "empty", "zeros", "ones", "full", "arange", "rand", "randn", "randperm"}


def test_every_tensor_of_the_library_names_its_device() -> None:
    """Otherwise it follows `torch.set_default_device` of the script."""
    package = Path(headway.train.__file__).parent
    nameless = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _FACTORIES
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and "device" not in {one.arg for one in node.keywords}
    ]
    assert nameless == []
