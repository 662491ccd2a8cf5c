"""Scripts that accumulate gradients over batches by their own counter: changes wait for their step, and a loss goes back."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from headway.contract.runtime import COUNTER_BEGAN_ANEW, EXIT_RETRY, Checkpointed, Warned
from tests.elastic.harness import Job
from tests.elastic.live import Live
from tests.elastic.test_live import lose

BATCHES, EVERY = 70, 7
WHOLE = BATCHES / EVERY


@pytest.fixture
def accumulating(job: Callable[..., Job]) -> Live:
    """A job whose weight ends at `WHOLE` if no gradient is lost."""
    return Live(job("accumulating.py", "--every", EVERY, "--batches", BATCHES))


def weights(live: Live) -> set[float]:
    return {float(one) for one in re.findall(r"weight (\S+)", live.output())}


@pytest.mark.slow
@pytest.mark.parametrize("begun", [7, 8, 10, 13])
def test_growth_and_shrink_within_an_accumulation_wait_for_its_step(accumulating: Live, begun: int) -> None:
    live = accumulating
    live.start(1, steps=begun)
    live.play(
        [
            lambda: live.newcomers(live.members, 1),
            lambda: live.newcomers(live.members[:1], 0),
        ],
        steps=17,
    )
    live.allow_all()
    assert live.wait() == [0], live.output()
    assert weights(live) == {WHOLE}
    assert not live.messages(Warned)


@pytest.mark.slow
@pytest.mark.parametrize("begun", [1, 7, 10, 14])
def test_loss_returns_to_the_last_checkpoint_so_that_each_batch_counts_once(
    accumulating: Live, begun: int
) -> None:
    live = accumulating
    live.start(2, steps=begun)
    live.wait_until_held()
    live.give(lose(live, live.members[1]))
    live.allow_all()
    assert live.wait() == [EXIT_RETRY], live.output()
    again = live.job.run(1, generation=9)
    assert re.findall(r"weight (\S+)", again.output()) == [f"{WHOLE:.4f}"]
    assert not live.messages(Warned)


@pytest.mark.slow
@pytest.mark.parametrize("every", [2, 7])
def test_batch_repeated_before_the_script_is_known_to_accumulate_returns_once_it_is(
    job: Callable[..., Job], every: int
) -> None:
    live = Live(job("accumulating.py", "--every", every, "--batches", BATCHES))
    live.start(2, steps=0)
    live.wait_until_held()
    live.give(lose(live, live.members[1]))
    live.allow_all()
    assert live.wait() == [EXIT_RETRY], live.output()
    again = live.job.run(1, generation=9)
    assert re.findall(r"weight (\S+)", again.output()) == [f"{BATCHES / every:.4f}"]


@pytest.mark.slow
def test_checkpoint_within_an_accumulation_waits_for_its_step(job: Callable[..., Job]) -> None:
    trained = job(
        "accumulating.py", "--every", EVERY, "--batches", BATCHES, HEADWAY_CHECKPOINT_EVERY_S="0.001"
    ).run(1)
    saved = [one.samples for one in trained.messages(Checkpointed)]
    assert len(saved) > 1, "none but the last"
    assert [one % (4 * EVERY) for one in saved] == [0] * len(saved)


@pytest.mark.slow
@pytest.mark.parametrize(("options", "said"), [(["--first"], {COUNTER_BEGAN_ANEW}), ([], set())])
def test_restart_that_begins_an_own_counter_anew_is_named_if_it_steps_in_other_batches(
    job: Callable[..., Job], options: list[str], said: set[str]
) -> None:
    arguments = ["--every", EVERY, "--batches", BATCHES, *options]
    live = Live(job("accumulating.py", *arguments, HEADWAY_CHECKPOINT_EVERY_S="0.001"))
    live.start(2, steps=2 * EVERY + 5)
    live.wait_until_held()
    live.until(lambda: any(one.samples > 4 * EVERY for one in live.messages(Checkpointed)))
    live.give(lose(live, live.members[1]))
    live.allow_all()
    assert live.wait() == [EXIT_RETRY], live.output()
    again = live.job.run(1, generation=9)
    assert {one.code for one in again.messages(Warned)} == said


@pytest.mark.slow
def test_restarted_script_that_accumulates_saves_its_first_step_so_that_losses_cannot_undo_all(
    accumulating: Live,
) -> None:
    live = accumulating
    live.start(2, steps=EVERY + 2, HEADWAY_CHECKPOINT_EVERY_S="0.001")
    live.wait_until_held()
    live.give(lose(live, live.members[1]))
    live.allow_all()
    assert live.wait() == [EXIT_RETRY], live.output()
    again = live.job.run(1, generation=9, HEADWAY_CHECKPOINT_EVERY_S="3600")
    saved = [one.samples for one in again.messages(Checkpointed)]
    assert saved == [4 * 2 * EVERY, 4 * BATCHES]
