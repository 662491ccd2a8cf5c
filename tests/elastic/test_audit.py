"""Ranks that hold different models are stopped with the name of what differs; other jobs are not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
import torch

from headway.contract.runtime import (
    ENV_AUDIT,
    ENV_AUDIT_NEAR,
    ENV_CHECKPOINT_EVERY_S,
    ENV_CONTROL,
    EXIT_RETRY,
    REPLICAS_DIFFER,
    Completed,
    Restored,
)
from tests.elastic.harness import Generation, Job, codes
from tests.elastic.live import Live

NOISE = f"headway: {REPLICAS_DIFFER}1.bias differs on rank 1\n"
RATE = f"headway: {REPLICAS_DIFFER}learning rate 0.0 is 0.1 on rank 0, 0.05 on rank 1"

AVERAGE = (
    f"headway: {REPLICAS_DIFFER}object 2, 0.weight differs on rank 1; object 2, 0.bias differs on rank 1; "
)

SHADOW = f"headway: {REPLICAS_DIFFER}object 3, shadow.1.bias differs on rank 1; object 3, shadow.1.weight "
REMEDY = re.compile(r"; if that is meant, write prepare\(\.\.\., local=(\[.*\])\)\n")
ESTIMATE = f"headway: {REPLICAS_DIFFER}d 0.0 is 1e-06 on rank 0, 1.0000009999999998e-06 on rank 1\n"


@pytest.fixture
def apart(job: Callable[..., Job]) -> Callable[..., Job]:
    """Makes a job of `apart.py`."""

    def make(*arguments: object) -> Job:
        made = job("apart.py", *arguments)
        made.arguments = [*made.arguments, "--result", str(made.folder)]
        return made

    return make


def logs(ended: Generation) -> list[str]:
    return [log.read_text() for log in sorted(ended.control.glob("*.log"))]


@pytest.mark.parametrize("first", [0, 5])
def test_ranks_with_noise_in_one_parameter_stop_together_and_name_it(
    apart: Callable[..., Job], first: int
) -> None:
    ended = apart("--apart", "noise", "--from-step", first).run(2)
    assert codes(ended) == [EXIT_RETRY] * 2, ended.output()
    assert all(NOISE in log for log in logs(ended)), ended.output()
    assert not ended.messages(Completed)


def test_rates_set_by_rank_are_named_with_both_values(apart: Callable[..., Job]) -> None:
    ended = apart("--apart", "rate", "--from-step", 5).run(2)
    assert codes(ended) == [EXIT_RETRY] * 2, ended.output()
    assert all(RATE in log for log in logs(ended)), ended.output()


def test_moving_average_kept_by_rank_0_alone_is_named(apart: Callable[..., Job]) -> None:
    ended = apart("--apart", "average", "--from-step", 5).run(2)
    assert codes(ended) == [EXIT_RETRY] * 2, ended.output()
    assert all(AVERAGE in log for log in logs(ended)), ended.output()


def test_moving_average_that_is_no_module_is_named_by_its_path(apart: Callable[..., Job]) -> None:
    ended = apart("--apart", "shadow", "--from-step", 5).run(2)
    assert codes(ended) == [EXIT_RETRY] * 2, ended.output()
    assert all(SHADOW in log for log in logs(ended)), ended.output()


def test_moving_average_that_is_named_as_the_message_says_may_differ(apart: Callable[..., Job]) -> None:
    stopped = apart("--apart", "shadow", "--from-step", 5).run(2)
    said = REMEDY.search(stopped.output())
    assert said is not None, stopped.output()
    ended = apart("--apart", "shadow", "--local", *json.loads(said[1])).run(2)
    assert codes(ended) == [0, 0], ended.output()


def test_moving_average_that_is_named_as_local_may_differ(apart: Callable[..., Job]) -> None:
    ended = apart("--apart", "shadow", "--local", "object 3, shadow.*").run(2)
    assert codes(ended) == [0, 0], ended.output()


def test_stopped_job_goes_on_from_its_last_equal_checkpoint(apart: Callable[..., Job]) -> None:
    whole, stopped = apart(), apart("--apart", "noise", "--from-step", 5)
    assert codes(whole.run(2)) == [0, 0]
    every_step = {ENV_CHECKPOINT_EVERY_S: "0.0001"}
    assert codes(stopped.run(2, **every_step)) == [EXIT_RETRY] * 2
    stopped.arguments = [one for one in stopped.arguments if one not in {"--apart", "noise"}]
    ended = stopped.run(2, **every_step)
    assert codes(ended) == [0, 0], ended.output()
    assert [0 < one.samples <= 5 * 8 for one in ended.messages(Restored)] == [True]
    assert_equal_results(whole, stopped, 2)


def assert_equal_results(one: Job, other: Job, size: int) -> None:
    for rank in range(size):
        first, second = (torch.load(job.folder / f"{rank}-of-{size}.pt") for job in (one, other))
        # Sums round by the division of the batch, which follows the speeds of the ranks. The noise is a thousand times larger.
        torch.testing.assert_close(first, second, rtol=0, atol=1e-6)


def test_difference_without_an_agent_is_an_error_of_the_script(apart: Callable[..., Job]) -> None:
    ended = apart("--apart", "noise").run(2, **{ENV_CONTROL: ""})
    assert 1 in codes(ended), ended.output()
    assert f"ReplicasDiffer: {REPLICAS_DIFFER}1.bias differs on rank 1. Give every rank" in ended.output()


def test_difference_is_meant_with_audit_none(apart: Callable[..., Job]) -> None:
    ended = apart("--apart", "noise").run(2, **{ENV_AUDIT: "none"})
    assert codes(ended) == [0, 0], ended.output()


ON_TWO_KINDS = {ENV_AUDIT: "none", ENV_AUDIT_NEAR: "1"}


@pytest.mark.parametrize(
    ("apart_by", "said"),
    [("rate", RATE), ("shadow", "object 3, shadow.1.bias differs on rank 1 by more than rounding; ")],
)
def test_ranks_on_devices_of_two_kinds_that_differ_stop_together(
    apart: Callable[..., Job], apart_by: str, said: str
) -> None:
    ended = apart("--apart", apart_by, "--from-step", 5).run(2, **ON_TWO_KINDS)
    assert codes(ended) == [EXIT_RETRY] * 2, ended.output()
    assert all(said in log for log in logs(ended)), ended.output()


@pytest.mark.parametrize("apart_by", ["rounding", "estimate"])
def test_rounding_is_no_difference_on_devices_of_two_kinds(apart: Callable[..., Job], apart_by: str) -> None:
    ended = apart("--apart", apart_by).run(2, **ON_TWO_KINDS)
    assert codes(ended) == [0, 0], ended.output()


def test_number_of_an_optimizer_that_differs_on_equal_devices_is_named(apart: Callable[..., Job]) -> None:
    ended = apart("--apart", "estimate").run(2)
    assert codes(ended) == [EXIT_RETRY] * 2, ended.output()
    assert all(ESTIMATE in log for log in logs(ended)), ended.output()


def test_difference_in_a_tensor_that_the_script_names_as_local_is_meant(apart: Callable[..., Job]) -> None:
    ended = apart("--apart", "noise", "--local", "*.bias").run(2)
    assert codes(ended) == [0, 0], ended.output()


def test_lone_rank_compares_nothing(apart: Callable[..., Job]) -> None:
    ended = apart("--apart", "rate").run(1)
    assert codes(ended) == [0], ended.output()


def test_difference_after_a_growth_is_found_soon_after_it(apart: Callable[..., Job]) -> None:
    live = Live(apart("--apart", "noise", "--steps", 1_000_000))
    live.start(1, steps=3)
    live.wait_until_held()
    live.give(live.newcomers(["1.0"], 1))
    live.allow_all()
    assert live.wait() == [EXIT_RETRY] * 2, live.output()
    assert live.output().count(NOISE) == 2


def test_equal_ranks_are_not_stopped_by_changes_of_size(apart: Callable[..., Job]) -> None:
    live = Live(apart("--steps", 24))
    live.start(1, steps=3)
    live.play(
        [
            lambda: live.newcomers(["1.0"], 1),
            lambda: live.newcomers(["1.0", "2.1"], 1),
            lambda: live.newcomers(["2.1", "3.2"], 0),
        ],
        steps=4,
    )
    live.wait_until_held()
    live.kill("3.2")
    live.give(live.survivors(["2.1"]))
    live.allow_all()
    assert live.wait() == [0], live.output()
    assert REPLICAS_DIFFER not in live.output()
