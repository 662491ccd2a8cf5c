"""The members of a team, without any peer."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.contract.orders import ORDER_FILE, Order, order_to_json
from headway.preemption import StopRequest
from headway.train.collectives.gloo import Gloo
from headway.train.host.environment import Environment
from headway.train.membership.control import Mailbox
from headway.train.membership.team import Team


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Team:
    """Rank 1 of the three that were started as generation 2."""
    folder = tmp_path_factory.mktemp("control")
    told = Environment(rank=1, world_size=3, generation=2, control=folder, store="127.0.0.1:1")
    return Team(told, Gloo(), 30.0, StopRequest(), Mailbox(None, rank=0, generation=1))


def ordered(*members: str, generation: int = 3) -> Order:
    return Order(
        generation=generation,
        world_size=len(members),
        store="127.0.0.1:1",
        members={member: rank for rank, member in enumerate(members)},
    )


@pytest.mark.parametrize(
    ("members", "before"),
    [
        (["2.0", "2.1", "2.2"], [0, 1, 2]),
        (["2.0", "2.1", "2.2", "3.3"], [0, 1, 2, None]),
        (["2.2", "2.0", "3.2"], [2, 0, None]),
        (["2.1"], [1]),
        (["3.0", "3.1"], [None, None]),
        (["2.1", "1.0"], [1, None]),
    ],
)
def test_the_ranks_before_are_those_of_the_present_members(
    team: Team, members: list[str], before: list[int | None]
) -> None:
    assert team.ranks_before(ordered(*members)) == before


def test_ranks_before_are_in_the_order_of_the_new_ranks(team: Team) -> None:
    """Not in that of the file."""
    order = Order(generation=3, world_size=3, store="h:1", members={"2.2": 2, "3.1": 1, "2.0": 0})
    assert team.ranks_before(order) == [0, None, 2]


def test_who_stays_and_who_leaves(team: Team) -> None:
    assert team.includes_me(ordered("2.0", "2.1"))
    assert not team.includes_me(ordered("2.0", "3.1"))
    assert not team.replaces_everyone(ordered("2.2", "3.1"))
    assert team.replaces_everyone(ordered("3.0", "3.1"))


def test_its_first_members_are_those_of_its_start(team: Team) -> None:
    assert team.first_order == ordered("2.0", "2.1", "2.2", generation=2)
    assert (team.rank, team.world_size, team.generation, team.live) == (1, 3, 2, True)


def test_an_order_is_due_until_it_is_followed(tmp_path: Path) -> None:
    told = Environment(rank=0, world_size=1, generation=2, control=tmp_path, store="127.0.0.1:1")
    team = Team(told, Gloo(), 30.0, StopRequest(), Mailbox(None, rank=0, generation=1))
    assert team.due() is None
    (tmp_path / ORDER_FILE).write_text(order_to_json(ordered("2.0", generation=5)))
    assert team.due() == team.await_order(4) == ordered("2.0", generation=5)
    team.generation = 5
    assert team.due() is None


def test_nobody_waits_for_an_order_after_a_request_to_stop(tmp_path: Path) -> None:
    stop = StopRequest()
    stop.arrive()
    told = Environment(rank=0, world_size=1, generation=2, control=tmp_path, store="127.0.0.1:1")
    assert Team(told, Gloo(), 1e6, stop, Mailbox(None, rank=0, generation=1)).await_order(2) is None


def test_an_order_that_never_comes_is_waited_for_no_longer_than_for_peers(tmp_path: Path) -> None:
    told = Environment(rank=0, world_size=1, generation=2, control=tmp_path, store="127.0.0.1:1")
    assert Team(told, Gloo(), 0.02, StopRequest(), Mailbox(None, rank=0, generation=1)).await_order(2) is None


def test_a_script_started_by_hand_is_alone_and_gets_no_orders() -> None:
    team = Team(Environment(), Gloo(), 30.0, StopRequest(), Mailbox(None, rank=0, generation=1))
    team.start(Environment())
    assert team.peers is not None
    assert (team.peers.rank, team.peers.world_size, team.live) == (0, 1, False)
    assert team.peers.gather(3, 4) == [[3, 4]]
    assert team.due() is None
    team.abort()
    assert team.peers is None
