"""Models in pipeline stages change size in place: no bit of their state changes in a move, and they learn as a whole model."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import pytest

from headway.contract.runtime import EpochClosed, FirstStep, Restored
from headway.contract.values.meshes import MeshShape
from tests.elastic.harness import Job
from tests.elastic.live import Live
from tests.elastic.noted import EPOCHS, Change, assert_continuous, play, steps


@pytest.fixture
def pipelined(job: Callable[..., Job]) -> Callable[..., Live]:
    """Makes a live job whose model has stages."""

    def make(*arguments: object) -> Live:
        made = job("pipelined.py", "--epochs", EPOCHS, *arguments)
        made.arguments = [*made.arguments, "--result", str(made.folder)]
        return Live(made)

    return make


MESHES = {
    "stages and shards": (
        ("pp", "fsdp"),
        [
            Change(MeshShape(pp=2)),
            Change(MeshShape(pp=2, fsdp=2)),
            Change(MeshShape(pp=2), 1, 3),
            Change(MeshShape(fsdp=3)),  # of a batch of 10 one rank has a sample more
        ],
    ),
    "stages and replicas": (
        ("pp", "replicate", "fsdp"),
        [
            Change(MeshShape(pp=2)),
            Change(MeshShape(pp=2, replicate=2)),
            Change(MeshShape(pp=2), 2),
        ],
    ),
    "stages and tensor parallelism": (
        ("pp", "fsdp", "tp"),
        [
            Change(MeshShape(pp=2, tp=2)),
            Change(MeshShape(fsdp=2)),
            Change(MeshShape(pp=3), 1),
        ],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MESHES)
def test_the_state_is_bit_equal_after_every_move(pipelined: Callable[..., Live], kind: str) -> None:
    names, changes = MESHES[kind]
    alone = pipelined("--plain")
    alone.start(1)
    assert alone.wait() == [0], alone.output()
    live = pipelined("--mesh", *names)
    play(live, changes)
    noted = steps(live.job.folder)
    sizes = [size for size, _ in groupby(one.world_size for one in noted)]
    assert sizes == [one.mesh.size for one in changes]
    assert_continuous(noted, steps(alone.job.folder))
    assert all(one.live and one.sharded for one in live.messages(FirstStep))
    assert not live.messages(Restored)
    audits = live.messages(EpochClosed)
    assert {one.epoch for one in audits} == set(range(EPOCHS))
    assert all(one.exactly_once for one in audits)


@pytest.mark.slow
def test_gradients_accumulate_over_batches_of_different_sizes(pipelined: Callable[..., Live]) -> None:
    alone = pipelined("--plain")
    alone.start(1)
    assert alone.wait() == [0], alone.output()
    live = pipelined("--max-local-batch", 4)
    live.start(2, mesh=MeshShape(pp=2))
    assert live.wait() == [0, 0], live.output()
    assert_continuous(steps(live.job.folder), steps(alone.job.folder))


@pytest.mark.slow
def test_a_checkpoint_loads_on_another_number_of_stages(pipelined: Callable[..., Live]) -> None:
    alone = pipelined("--plain")
    alone.start(1)
    assert alone.wait() == [0], alone.output()
    live = pipelined()
    live.start(2, steps=3, mesh=MeshShape(pp=2))
    for mesh in (MeshShape(pp=3), MeshShape(fsdp=2), MeshShape(pp=2, fsdp=2)):
        live.wait_until_held()
        live.give(live.newcomers([], mesh.size, mesh=mesh))
        live.allow(3)
        live.wait_for_switch()
    live.allow_all()
    assert live.wait() == [0] * 4, live.output()
    assert len(live.messages(Restored)) == 3
    assert_continuous(steps(live.job.folder), steps(alone.job.folder))


@pytest.mark.slow
def test_a_stage_may_have_no_trained_parameters(pipelined: Callable[..., Live]) -> None:
    alone = pipelined("--plain", "--frozen", 3)
    alone.start(1)
    assert alone.wait() == [0], alone.output()
    live = pipelined("--frozen", 3)
    play(live, [Change(MeshShape(pp=2)), Change(MeshShape(pp=2, fsdp=2))])
    assert_continuous(steps(live.job.folder), steps(alone.job.folder))
