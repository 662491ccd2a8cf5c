"""Which errors of collectives mean that peers are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from headway.train.collectives.losses import is_loss
from headway.train.membership.meeting import PeersLost, peers_may_be_lost


def error_of(act: Callable[..., Any], *arguments: Any) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011  # whatever torch raises
        act(*arguments)
    return raised.value


def sum_over_no_group() -> None:
    dist.all_reduce(torch.zeros(1))


@pytest.mark.parametrize(
    "act", [sum_over_no_group, dist.destroy_process_group, dist.get_world_size, dist.new_group]
)
def test_whatever_torch_raises_about_a_group_that_is_gone_is_a_loss(act: Callable[[], Any]) -> None:
    error = error_of(act)
    assert not isinstance(error, RuntimeError), "it would prove nothing"
    assert is_loss(error)
    with pytest.raises(PeersLost), peers_may_be_lost():
        act()


@pytest.mark.parametrize("kind", [RuntimeError, dist.DistBackendError, dist.DistNetworkError])
def test_an_error_of_a_backend_is_a_loss(kind: type[Exception]) -> None:
    assert is_loss(kind("Connection reset by peer"))


def read_a_bad_number() -> None:
    int("x")


def read_a_missing_key() -> None:
    dict[str, int]()["rank"]


def miss_an_attribute() -> None:
    getattr(object(), "no such name")  # mypy knows that there is none


@pytest.mark.parametrize("act", [read_a_bad_number, read_a_missing_key, miss_an_attribute])
def test_a_mistake_of_the_caller_is_no_loss(act: Callable[[], Any]) -> None:
    assert not is_loss(error_of(act))
    with pytest.raises((ValueError, KeyError, AttributeError)), peers_may_be_lost():
        act()
