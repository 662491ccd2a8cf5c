"""Layers that are frozen and unfrozen while members come, go and are lost: every rank ends with the weights of a lone one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from headway.contract.runtime import Restored
from tests.elastic.harness import Job, codes
from tests.elastic.live import Live
from tests.elastic.test_live import lose

STOPPED = 143
MODES = {"before the batch": [], "in the body": ["--in-body"], "once": ["--once"]}


@pytest.fixture
def freezing(job: Callable[..., Job]) -> Callable[..., Job]:
    """Makes a job of `freezing.py`."""

    def make(*arguments: object) -> Job:
        made = job("freezing.py", *arguments)
        made.arguments = [*made.arguments, "--result", str(made.folder)]
        return made

    return make


@pytest.fixture
def undisturbed(freezing: Callable[..., Job]) -> dict[str, torch.Tensor]:
    """The weights of a lone rank without micro-batches, whose gradients nobody scales or adds."""
    alone = freezing()
    ended = alone.run(1)
    assert codes(ended) == [0], ended.output()
    return weights(alone, 0, 1)


def weights(job: Job, rank: int, size: int) -> dict[str, torch.Tensor]:
    return torch.load(job.folder / f"{rank}-of-{size}.pt", weights_only=True)  # type: ignore[no-any-return]


def assert_weights(job: Job, size: int, expected: dict[str, torch.Tensor]) -> None:
    for rank in range(size):
        torch.testing.assert_close(weights(job, rank, size), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("max_local", [None, 3])
def test_changed_layers_end_as_on_a_lone_rank(
    freezing: Callable[..., Job],
    undisturbed: dict[str, torch.Tensor],
    size: int,
    mode: str,
    max_local: int | None,
) -> None:
    made = freezing(*MODES[mode], *(["--max-local", max_local] if max_local else []))
    ended = made.run(size)
    assert codes(ended) == [0] * size, ended.output()
    assert_weights(made, size, undisturbed)


@pytest.mark.parametrize("mode", MODES)
def test_members_that_change_between_the_changes_end_as_on_a_lone_rank(
    freezing: Callable[..., Job], undisturbed: dict[str, torch.Tensor], mode: str
) -> None:
    live = Live(freezing(*MODES[mode], "--max-local", 4))
    live.start(1, steps=3)
    live.play(
        [
            lambda: live.newcomers(live.members, 1),
            lambda: live.newcomers(live.members, 1),
            lambda: lose(live, live.members[1]),
            lambda: live.newcomers(live.members[1:], 1),
        ],
        steps=4,
    )
    live.allow_all()
    assert live.wait() == [0, 0], live.output()
    assert_weights(live.job, 2, undisturbed)


def test_newcomer_takes_layers_that_the_source_unfroze_once(
    freezing: Callable[..., Job], undisturbed: dict[str, torch.Tensor]
) -> None:
    live = Live(freezing("--once"))
    live.start(1, steps=7)
    live.play([lambda: live.newcomers(live.members, 1)], steps=3)
    live.allow_all()
    assert live.wait() == [0, 0], live.output()
    assert_weights(live.job, 2, undisturbed)


def test_restart_restores_layers_that_were_unfrozen_once(
    freezing: Callable[..., Job], undisturbed: dict[str, torch.Tensor]
) -> None:
    made = freezing("--once")
    stopped = made.run(2, FAULTS=json.dumps([[0, 8, "SIGTERM"]]))
    assert codes(stopped) == [STOPPED] * 2, stopped.output()
    ended = made.run(2)
    assert codes(ended) == [0] * 2, ended.output()
    assert ended.messages(Restored)
    assert_weights(made, 2, undisturbed)


@pytest.mark.parametrize("mode", MODES)
def test_layers_unfrozen_on_one_rank_end_the_job_on_every_rank(
    freezing: Callable[..., Job], mode: str
) -> None:
    ended = freezing(*MODES[mode], "--by-rank").run(2)
    assert 1 in codes(ended), ended.output()
    assert "the ranks disagree on which parameters train" in ended.output()
    assert "rank 1 differs from rank 0" in ended.output()
    assert "on this rank 2.weight, 2.bias changed" in ended.output()
