"""Scripts that accumulate gradients over batches by their own counter: changes wait for their step, and losses are said."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from headway.contract.runtime import Checkpointed, Warned
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
def test_loss_within_an_accumulation_is_told_with_the_batches_that_it_cost(accumulating: Live) -> None:
    live = accumulating
    live.start(2, steps=10)
    live.wait_until_held()
    live.give(lose(live, live.members[1]))
    live.allow_all()
    assert live.wait() == [0], live.output()
    (told,) = live.messages(Warned)
    assert told.code == "GRADIENTS_LOST"
    lost = int(re.findall(r"gradients of (\d+) batches", told.text)[0])
    (weight,) = weights(live)
    assert lost > 0
    # The script has counted the repeated batch twice, so its last batch comes without a step.
    assert weight == pytest.approx(WHOLE - (lost + 1) / EVERY, abs=1e-3)
    assert "use max_local_batch" in told.text


@pytest.mark.slow
def test_checkpoint_within_an_accumulation_waits_for_its_step(job: Callable[..., Job]) -> None:
    trained = job(
        "accumulating.py", "--every", EVERY, "--batches", BATCHES, HEADWAY_CHECKPOINT_EVERY_S="0.001"
    ).run(1)
    saved = [one.samples for one in trained.messages(Checkpointed)]
    assert len(saved) > 1, "none but the last"
    assert [one % (4 * EVERY) for one in saved] == [0] * len(saved)
