"""The examples do what they promise, stopped once on the way and continued at another size."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.contract.runtime import EpochClosed, FirstStep, Metrics
from headway.contract.values.meshes import MeshShape
from tests.elastic.harness import Generation, Job, codes
from tests.elastic.live import Live

EXAMPLES = Path(__file__).parents[2] / "examples"
STOPPED, DONE = 143, 0


def stopped_once(job: Job, sizes: tuple[int, int], started: Callable[[Generation], bool]) -> Generation:
    """The second of two generations: the first is stopped as soon as it has `started`."""
    first = job.start(sizes[0])
    first.until(lambda: started(first))
    first.stop()
    assert first.wait() == [STOPPED] * sizes[0], first.output()
    second = job.run(sizes[1])
    assert codes(second) == [DONE] * sizes[1], second.output()
    return second


def in_training(generation: Generation) -> bool:
    return bool(generation.messages(FirstStep))


def final(job: Job, metric: str) -> float:
    return [message.values[metric] for message in job.messages(Metrics) if metric in message.values][-1]


@pytest.mark.slow
def test_digits(job: Callable[..., Job]) -> None:
    digits = job(EXAMPLES / "digits.py")
    stopped_once(digits, (1, 2), in_training)
    assert final(digits, "accuracy") >= 0.97
    assert [audit.exactly_once for audit in digits.messages(EpochClosed)] == [True] * 20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_gpt_char(job: Callable[..., Job]) -> None:
    gpt = job(EXAMPLES / "gpt_char.py", "--epochs", 2, "--characters", 300_000)
    stopped_once(gpt, (2, 2), in_training)
    assert final(gpt, "loss") < 2.0
    assert [audit.exactly_once for audit in gpt.messages(EpochClosed)] == [True] * 2


@pytest.mark.slow
def test_gpt_fsdp_changes_size_in_place(job: Callable[..., Job]) -> None:
    live = Live(job(EXAMPLES / "gpt_fsdp.py", "--epochs", 2, "--characters", 60_000))
    live.start(1)
    live.until(lambda: live.messages(FirstStep))
    live.give(live.newcomers(live.members, 1))
    (first, second) = live.wait_for_switch()
    assert min(first.sync_bytes, second.sync_bytes) > 1_000_000  # half of the parameters and of two averages
    assert live.wait() == [DONE] * 2, live.output()
    assert [audit.exactly_once for audit in live.messages(EpochClosed)] == [True] * 2
    losses = [message.values["loss"] for message in live.messages(Metrics)]
    assert losses[1] < losses[0] < 4.0


@pytest.mark.slow
@pytest.mark.parametrize("dimension", ["tp", "pp"])
def test_gpt_changes_its_mesh_in_place(job: Callable[..., Job], dimension: str) -> None:
    live = Live(job(EXAMPLES / f"gpt_{dimension}.py", "--epochs", 2, "--characters", 40_000))
    live.start(2, mesh=MeshShape(**{dimension: 2}))
    live.until(lambda: live.messages(FirstStep))
    live.give(live.newcomers(live.members, 2, mesh=MeshShape(replicate=2, **{dimension: 2})))
    assert all(one.sync_bytes > 1_000_000 for one in live.wait_for_switch())
    assert live.wait() == [DONE] * 4, live.output()
    assert [audit.exactly_once for audit in live.messages(EpochClosed)] == [True] * 2
    losses = [message.values["loss"] for message in live.messages(Metrics)]
    assert losses[1] < losses[0] < 4.0


@pytest.mark.slow
def test_plain_ddp(job: Callable[..., Job]) -> None:
    plain = job(EXAMPLES / "plain_ddp.py", "--steps", 600)
    second = stopped_once(plain, (1, 2), lambda generation: "step 100" in generation.output())
    stopped = re.search(r"saved after step (\d+)", plain.generations[0].output())
    assert stopped is not None
    assert f"training on 2 processes from step {int(stopped[1]) + 1}" in second.output()
    accuracy = re.search(r"recognises ([\d.]+)% of", second.output())
    assert accuracy is not None
    assert float(accuracy[1]) > 85
