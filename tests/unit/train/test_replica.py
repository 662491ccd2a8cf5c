from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headway.train.ledger import Ledger
from headway.train.position import Position
from headway.train.replica import Place, Replica


def objects(*, width: int = 3) -> list[Any]:
    model = nn.Linear(width, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return [model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])]


PLACE = Place(Position(2, 30), Ledger(30, 400, 2**61 - 1), dataset_samples=100, seed=4)


def test_what_is_dumped_can_be_loaded() -> None:
    torch.manual_seed(0)
    saved, fresh = objects(), objects()
    assert Replica(fresh).load(bytes(Replica(saved).dump(PLACE))) == PLACE
    assert PLACE.samples == 230
    torch.testing.assert_close(fresh[0].state_dict(), saved[0].state_dict())
    assert str(fresh[1].state_dict()) == str(saved[1].state_dict())
    assert fresh[2].state_dict() == saved[2].state_dict()


def test_other_objects_are_refused() -> None:
    data = bytes(Replica(objects()).dump(PLACE))
    with pytest.raises(ValueError, match="holds 3 objects, but prepare\\(\\) was given 2"):
        Replica(objects()[:2]).load(data)
    with pytest.raises(RuntimeError, match="size mismatch") as refused:
        Replica(objects(width=4)).load(data)
    assert "does not fit this Linear" in refused.value.__notes__[0]


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
