"""Scripts that use further parts of torch end with the weights of a lone rank after growths, a loss and a shrink."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from tests.elastic.harness import Job, codes
from tests.elastic.live import Live
from tests.elastic.test_live import lose

KINDS = (
    *("tensor rate", "swa", "one cycle", "chained", "lookahead", "scaler", "own clip", "checkpointing"),
    *(
        "reassigned",
        "moved",
        "pool",
        "game together",
        "game in turns",
        "frozen game together",
        "frozen game in turns",
        "game after both",
    ),
)
LAYERED = ("parametrized", "pruned", "tied", "lazy")
"""Kinds that change layers after `prepare`, which a new rank has not done when it joins."""


def made(job: Callable[..., Job], kind: str) -> Job:
    attack = job("attacks.py", "--kind", kind)
    attack.arguments = [*attack.arguments, "--result", str(attack.folder)]
    return attack


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begins", [3, 7])
def test_script_ends_as_on_a_lone_rank(job: Callable[..., Job], kind: str, begins: int) -> None:
    alone = made(job, kind)
    assert codes(alone.run(1)) == [0], alone.generations[-1].output()
    expected = torch.load(alone.folder / "0-of-1.pt", weights_only=True)
    live = Live(made(job, kind))
    live.start(1, steps=begins)
    live.play(
        [
            lambda: live.newcomers(live.members, 2),
            lambda: lose(live, live.members[2]),
            lambda: live.newcomers(live.members[1:], 1),
        ],
        steps=3,
    )
    live.allow_all()
    assert live.wait() == [0, 0], live.output()
    for rank in range(2):
        found = torch.load(live.job.folder / f"{rank}-of-2.pt", weights_only=True)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYERED)
def test_new_rank_without_the_changed_layers_is_refused_and_others_go_on(
    job: Callable[..., Job], kind: str
) -> None:
    alone = made(job, kind)
    assert codes(alone.run(1)) == [0], alone.generations[-1].output()
    live = Live(made(job, kind))
    live.start(1, steps=7)
    live.wait_until_held()
    order = live.newcomers(live.members, 1)
    live.give(order)
    live.allow_all()
    newcomer = live.processes[live.members[1]]
    live.until(lambda: newcomer.code is not None)
    assert newcomer.code == 1, live.output()
    assert "MEMBER_DIFFERS" in live.output()
    live.give(live.survivors(["1.0"]))
    assert live.wait() == [0], live.output()
    expected = torch.load(alone.folder / "0-of-1.pt", weights_only=True)
    found = torch.load(live.job.folder / "0-of-1.pt", weights_only=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_rank_that_leaves_the_loop_alone_fails_the_job_with_a_sentence(job: Callable[..., Job]) -> None:
    started = job("leaving.py", "--leaves", 3, "--all", 6).start(2)
    assert started.wait() == [1, 0], started.output()
    assert "LOOP_LEFT: rank 1 left the training loop after step" in started.output()


@pytest.mark.slow
def test_ranks_that_leave_the_loop_together_end_with_code_0(job: Callable[..., Job]) -> None:
    started = job("leaving.py", "--leaves", 3, "--all", 3).start(2)
    assert started.wait() == [0, 0], started.output()


@pytest.mark.slow
@pytest.mark.parametrize("model", [[], ["--buffers"]])
def test_rank_that_leaves_a_batch_before_its_backward_pass_is_named_within_seconds(
    job: Callable[..., Job], model: list[str]
) -> None:
    began_s = time.monotonic()
    started = job("leaving.py", "--inner", "--leaves", 2, "--all", 9, *model).start(3)
    codes_of = started.wait()
    assert {1} <= set(codes_of) <= {1, -9}, "the launcher kills those that are left"
    said = "LOOP_LEFT: rank 1 left the loop over the data in epoch 1, within the batch at sample 24"
    assert said in started.output()
    assert time.monotonic() - began_s < 50, "not after the time limit of the ranks, 60 s"


@pytest.mark.slow
def test_ranks_that_leave_before_the_same_batch_go_on_with_the_next_epoch(job: Callable[..., Job]) -> None:
    started = job("leaving.py", "--inner", "--leaves", 2, "--all", 2).start(2)
    assert started.wait() == [0, 0], started.output()
    assert "LOOP_LEFT" not in started.output()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "said"), [("hook", "a hook on head.weight sees a part of the gradient")])
def test_script_that_depends_on_the_size_is_warned(job: Callable[..., Job], kind: str, said: str) -> None:
    alone = made(job, kind)
    assert codes(alone.run(1)) == [0], alone.generations[-1].output()
    assert said in alone.generations[-1].output()
