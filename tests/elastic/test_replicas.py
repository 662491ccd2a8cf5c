"""A lost rank of a model with replicas (HSDP) costs at most the step in progress, with tensor parallelism too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headway.contract.runtime import EXIT_RETRY, FirstStep
from headway.contract.values.meshes import MeshShape
from tests.elastic.devices import OVER_SLOW_STREAMS
from tests.elastic.harness import Job
from tests.elastic.live import Live
from tests.elastic.losses import LOST_IN, Step, assert_one_step_was_lost, lose, steps

HSDP = MeshShape(replicate=2, fsdp=2)


@pytest.fixture
def replicated(job: Callable[..., Job]) -> Callable[..., Live]:
    """Makes a live job with a model on a mesh of these dimensions."""

    def make(*names: str, arguments: tuple[object, ...] = ()) -> Live:
        made = job("redundant.py", "--width", 12, "--mesh", *names, *arguments)
        made.arguments = [*made.arguments, "--result", str(made.folder)]
        return Live(made)

    return make


@pytest.fixture(scope="module")
def known() -> dict[MeshShape, list[Step]]:
    """Runs without a fault, by mesh."""
    return {}


@pytest.fixture
def undisturbed(
    replicated: Callable[..., Live], known: dict[MeshShape, list[Step]]
) -> Callable[..., list[Step]]:
    """Steps of a run without a fault."""

    def run(mesh: MeshShape, *names: str) -> list[Step]:
        if mesh not in known:
            live = replicated(*names)
            live.start(mesh.size, mesh=mesh)
            assert set(live.wait()) == {0}, live.output()
            known[mesh] = steps(live.job.folder)
        return known[mesh]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "place"),
    [
        (0, "between steps"),
        (3, "forward"),
        (0, "forward"),
        (1, "backward"),
        (2, "before clipping"),
        (0, "before commit"),
    ],
)
def test_a_loss_before_the_commit_repeats_the_step(
    replicated: Callable[..., Live], undisturbed: Callable[..., list[Step]], victim: int, place: str
) -> None:
    live = replicated("replicate", "fsdp")
    lose(live, 4, (victim, LOST_IN, place), mesh=HSDP, then=MeshShape(fsdp=3))
    assert_one_step_was_lost(live, undisturbed(HSDP, "replicate", "fsdp"), LOST_IN - 1)
    assert all(one.replicates for one in live.messages(FirstStep))


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "place"), [(0, "after commit"), (3, "after own step")])
def test_a_loss_after_the_commit_keeps_the_step(
    replicated: Callable[..., Live], undisturbed: Callable[..., list[Step]], victim: int, place: str
) -> None:
    live = replicated("replicate", "fsdp")
    lose(live, 4, (victim, LOST_IN, place), mesh=HSDP, then=MeshShape(fsdp=3))
    assert_one_step_was_lost(live, undisturbed(HSDP, "replicate", "fsdp"), LOST_IN)


@pytest.mark.slow
@pytest.mark.parametrize("unsure", [0, 3])
def test_a_rank_that_does_not_know_of_the_commit_takes_the_step_later(
    replicated: Callable[..., Live], undisturbed: Callable[..., list[Step]], unsure: int
) -> None:
    live = replicated("replicate", "fsdp")
    faults = (1, LOST_IN, "after commit"), (unsure, LOST_IN, "unsure")
    lose(live, 4, *faults, mesh=HSDP, then=MeshShape(fsdp=3))
    assert_one_step_was_lost(live, undisturbed(HSDP, "replicate", "fsdp"), LOST_IN)


@pytest.mark.slow
def test_a_lost_replica_costs_a_step(
    replicated: Callable[..., Live], undisturbed: Callable[..., list[Step]]
) -> None:
    live = replicated("replicate", "fsdp")
    faults = (0, LOST_IN, "forward"), (1, LOST_IN, "backward")
    lose(live, 4, *faults, mesh=HSDP, then=MeshShape(fsdp=2))
    assert_one_step_was_lost(live, undisturbed(HSDP, "replicate", "fsdp"), LOST_IN - 1)


@OVER_SLOW_STREAMS
def test_all_ranks_with_a_part_are_lost_at_once(replicated: Callable[..., Live]) -> None:
    live = replicated("replicate", "fsdp")
    faults = (1, LOST_IN, "forward"), (3, LOST_IN, "forward")
    lose(live, 4, *faults, mesh=HSDP, then=MeshShape(fsdp=2))
    assert live.wait() == [EXIT_RETRY] * 2, live.output()
    assert "SHARDS_LOST" in live.output()


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "place"), [(1, "forward"), (2, "backward"), (3, "before commit")])
def test_a_part_of_a_tensor_parallel_group_has_a_replica(
    replicated: Callable[..., Live], undisturbed: Callable[..., list[Step]], victim: int, place: str
) -> None:
    names, mesh = ("replicate", "fsdp", "tp"), MeshShape(replicate=2, tp=2)
    live = replicated(*names)
    lose(live, 4, (victim, LOST_IN, place), mesh=mesh, then=MeshShape(fsdp=3))
    assert_one_step_was_lost(live, undisturbed(mesh, *names), LOST_IN - 1)


def test_a_loss_within_a_closure_is_a_restart(replicated: Callable[..., Live]) -> None:
    live = replicated("replicate", "fsdp", arguments=("--closure",))
    lose(live, 4, (1, LOST_IN, "backward"), mesh=HSDP, then=MeshShape(fsdp=3))
    assert live.wait() == [EXIT_RETRY] * 3, live.output()


@pytest.mark.slow
def test_a_loss_before_a_closure_costs_a_step(replicated: Callable[..., Live]) -> None:
    live = replicated("replicate", "fsdp", arguments=("--closure",))
    lose(live, 4, (1, LOST_IN, "before commit"), mesh=HSDP, then=MeshShape(fsdp=3))
    assert all(one.lost_steps == 1 for one in live.wait_for_switch())
    assert live.wait() == [0] * 3, live.output()
