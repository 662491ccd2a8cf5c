"""Models that the library shards (FSDP2) change size in place: no bit of their state changes in a move."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import pytest

from headway.contract.runtime import EXIT_RETRY, Completed, EpochClosed, FirstStep, Left, Restored
from headway.contract.values.meshes import MeshShape
from tests.elastic.harness import Job
from tests.elastic.live import Live
from tests.elastic.noted import EPOCHS, Change, assert_continuous, play, steps


@pytest.fixture
def sharded(job: Callable[..., Job]) -> Callable[..., Live]:
    """Makes a live job with a sharded model."""

    def make(*arguments: object) -> Live:
        made = job("resharded.py", "--epochs", EPOCHS, *arguments)
        made.arguments = [*made.arguments, "--result", str(made.folder)]
        return Live(made)

    return make


@pytest.mark.slow
def test_the_state_is_bit_equal_after_every_move(sharded: Callable[..., Live]) -> None:
    alone = sharded()
    alone.start(2)
    assert alone.wait() == [0, 0], alone.output()
    live = sharded()
    live.start(2, steps=3)
    for change in (
        lambda: live.newcomers(live.members, 1),  # 3
        lambda: live.newcomers(live.members[1:], 0),  # 2, without the first
        lambda: live.newcomers(live.members[:1], 0),  # 1
        lambda: live.newcomers(live.members, 1),  # 2
        lambda: live.newcomers(live.members[1:], 2),  # 3, and one leaves
    ):
        live.wait_until_held()
        live.give(change())
        live.allow(3)
        switched = live.wait_for_switch()
        assert all(one.lost_steps == 0 for one in switched)
        assert any(one.sync_bytes > 0 for one in switched)
    live.allow_all()
    assert live.wait() == [0, 0, 0], live.output()
    noted = steps(live.job.folder)
    sizes = [one.world_size for one in noted]
    assert [size for size, before in zip(sizes, [0, *sizes], strict=False) if size != before] == [
        2,
        3,
        2,
        1,
        2,
        3,
    ]
    assert_continuous(noted, steps(alone.job.folder))
    assert all(one.live and one.sharded for one in live.messages(FirstStep))
    assert len(live.messages(Left)) == 3
    assert not live.messages(Restored)


@pytest.mark.slow
def test_several_optimizers_keep_their_states(sharded: Callable[..., Live]) -> None:
    alone = sharded()  # one optimizer with the same settings
    alone.start(2)
    assert alone.wait() == [0, 0], alone.output()
    live = sharded("--several")
    live.start(2, steps=3)
    live.play(
        (
            lambda: live.newcomers(live.members, 1),  # 3
            lambda: live.newcomers(live.members[1:], 0),  # 2, without the first
            lambda: live.newcomers([], 3),  # through a checkpoint
        ),
        steps=3,
    )
    live.allow_all()
    assert live.wait() == [0, 0, 0], live.output()
    noted = steps(live.job.folder)
    assert [size for size, _ in groupby(one.world_size for one in noted)] == [2, 3, 2, 3]
    assert_continuous(noted, steps(alone.job.folder))
    assert len(live.messages(Restored)) == 1


MESHES = {
    "hsdp": (
        ("replicate", "fsdp"),
        [
            Change(MeshShape(fsdp=2)),
            Change(MeshShape(replicate=2, fsdp=2)),
            Change(MeshShape(replicate=2), 1, 3),
            Change(MeshShape(fsdp=3)),
            Change(MeshShape(fsdp=1), 1, 2),
        ],
    ),
    "tensor parallel": (
        ("fsdp", "tp"),
        [
            Change(MeshShape(tp=2)),
            Change(MeshShape(fsdp=2, tp=2)),
            Change(MeshShape(tp=2), 1, 3),
            Change(MeshShape(fsdp=2, tp=2), 1),
            Change(MeshShape(fsdp=2)),
        ],
    ),
    "all three": (
        ("replicate", "fsdp", "tp"),
        [
            Change(MeshShape(replicate=2, tp=2)),
            Change(MeshShape(fsdp=2, tp=2)),
            Change(MeshShape(replicate=2, fsdp=2), 2),
            Change(MeshShape(tp=2), 2),
        ],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MESHES)
def test_the_state_is_bit_equal_on_meshes_of_several_dimensions(
    sharded: Callable[..., Live], kind: str
) -> None:
    names, changes = MESHES[kind]
    hidden = 12 if "tp" in names else 13
    arguments = ("--mesh", *names, "--hidden", hidden)
    alone = sharded(*arguments)
    alone.start(1)
    assert alone.wait() == [0], alone.output()
    live = sharded(*arguments)
    play(live, changes)
    noted = steps(live.job.folder)
    sizes = [size for size, _ in groupby(one.world_size for one in noted)]
    assert sizes == [size for size, _ in groupby(one.mesh.size for one in changes)]
    assert_continuous(noted, steps(alone.job.folder))
    assert not live.messages(Restored)
    audits = live.messages(EpochClosed)
    assert {one.epoch for one in audits} == set(range(EPOCHS))
    assert all(one.exactly_once for one in audits)


@pytest.mark.slow
def test_a_whole_move_goes_through_a_checkpoint(sharded: Callable[..., Live]) -> None:
    live = sharded()
    live.start(2, steps=3)
    live.wait_until_held()
    live.give(live.newcomers([], 3))
    live.allow_all()
    live.wait_for_switch()
    assert live.wait() == [0, 0, 0], live.output()
    assert len(live.messages(Restored)) == 1
    noted = steps(live.job.folder)
    assert [one.before for one in noted[1:]] == [one.after for one in noted[:-1]]
    assert live.messages(Completed)


@pytest.mark.slow
def test_a_checkpoint_of_renumbered_ranks_loads_on_another_mesh(sharded: Callable[..., Live]) -> None:
    live = sharded("--mesh", "fsdp", "tp", "--hidden", 12)
    live.start(2, steps=3, mesh=MeshShape(fsdp=2))
    live.wait_until_held()
    live.give(live.newcomers(live.members[1:], 1, mesh=MeshShape(fsdp=2)))  # rank 1 becomes rank 0
    live.allow(3)
    live.wait_for_switch()
    live.wait_until_held()
    live.give(live.newcomers([], 4, mesh=MeshShape(fsdp=2, tp=2)))
    live.allow_all()
    live.wait_for_switch()
    assert live.wait() == [0] * 4, live.output()
    assert len(live.messages(Restored)) == 1
    noted = steps(live.job.folder)
    assert [one.before for one in noted[1:]] == [one.after for one in noted[:-1]]


@pytest.mark.slow
def test_a_rank_lost_during_a_move_costs_a_restart(sharded: Callable[..., Live]) -> None:
    live = sharded("--timeout-s", 8)
    live.start(2, steps=3)
    live.wait_until_held()
    newcomer = live.newcomers(live.members, 1)
    (new,) = [one for one in newcomer.members if one not in live.members]
    live.kill(new)
    live.give(newcomer)
    live.members = live.members[:2]
    live.allow_all()
    assert live.wait() == [EXIT_RETRY, EXIT_RETRY], live.output()
