"""Real ranks save by the losses that the service expects: those of their start, of a change, and of a repeated order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headway.contract.orders import Order, member_id
from headway.contract.runtime import Checkpointed, Switched
from headway.contract.values.checkpoint_interval import CHEAP_PAUSE, SHORTEST_S
from tests.elastic.harness import Job
from tests.elastic.live import Live

RARE, OFTEN = 1e-9, 1e6
"""Losses per hour for which a save has the longest interval that its cost allows, or the shortest one."""
PAUSE_S = 0.2
"""Shortest pause of a save."""


@pytest.fixture
def live(job: Callable[..., Job]) -> Live:
    """A live job of 100 steps."""
    made = job("count.py", "--samples", 400, "--epochs", 2, "--batch", 8)
    made.arguments = [*made.arguments, "--result", str(made.folder), "--state-s", str(PAUSE_S)]
    return Live(made)


def repeated(live: Live, losses_per_h: float) -> Order:
    """The order for the present members, with these losses."""
    members = {member: rank for rank, member in enumerate(live.members)}
    store = f"127.0.0.1:{live.processes[live.members[0]].cohort.store.port}"
    return Order(
        generation=live.generation,
        world_size=len(members),
        store=store,
        members=members,
        losses_per_h=losses_per_h,
        losses_at_s=1.0,
    )


def saves_rarely_at_the_end(live: Live) -> bool:
    """Return True if the ranks had the interval of rare losses at the end of the job. A slow save may prolong the other."""
    live.allow_all()
    assert live.wait() == [0] * len(live.members), live.output()
    every_s = live.messages(Checkpointed)[-1].every_s
    assert every_s is not None
    assert every_s >= SHORTEST_S
    return every_s >= PAUSE_S / CHEAP_PAUSE


@pytest.mark.parametrize("losses_per_h", [RARE, OFTEN])
def test_the_interval_of_a_start(live: Live, losses_per_h: float) -> None:
    live.start(2, HEADWAY_LOSSES_PER_H=str(losses_per_h))
    assert saves_rarely_at_the_end(live) == (losses_per_h == RARE)


@pytest.mark.parametrize(("before", "after"), [(RARE, OFTEN), (OFTEN, RARE)])
def test_a_repeated_order_changes_the_interval_and_nothing_else(
    live: Live, before: float, after: float
) -> None:
    live.start(2, steps=3, HEADWAY_LOSSES_PER_H=str(before))
    live.wait_until_held()
    assert live.members == [member_id(1, 0), member_id(1, 1)]
    live.give(repeated(live, after))
    assert saves_rarely_at_the_end(live) == (after == RARE)
    assert live.messages(Switched) == []


def test_a_change_brings_the_losses_of_the_new_machines(live: Live) -> None:
    live.start(1, steps=3, HEADWAY_LOSSES_PER_H=str(RARE))
    live.wait_until_held()
    order = live.newcomers(live.members, 1)
    live.give(replace(order, losses_per_h=OFTEN, losses_at_s=1.0))
    live.allow(4)
    live.wait_for_switch()
    assert not saves_rarely_at_the_end(live)
