"""The recipes of examples/frameworks: few changed lines, and jobs that change size as if nothing had happened."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest

from headway.contract.runtime import Checkpointed, Completed, EpochClosed, Left, Metrics, Restored
from tests.elastic.harness import SCRIPTS, Job, codes, preloading
from tests.elastic.live import Live
from tests.elastic.test_examples import EXAMPLES
from tests.elastic.test_live import lose
from tools.changed_lines import changed_lines

FOLDER = EXAMPLES / "frameworks"
MOST_CHANGED = 5
TOLERANCE = 1e-4
"""Largest relative difference of a loss from that of an undisturbed run."""
HALF_TOLERANCE = 1e-3
"""The same in half precision, whose sums over the parts of a batch round at 5e-4."""
RECIPES = {
    "trainer": "transformers",
    "lora": "peft",
    "sft": "trl",
    "accelerate": "accelerate",
    "lightning": "lightning",
}
"""The package of each recipe that runs on replicated models."""
LOADED = (
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
    "trl.trainer.sft_trainer",
    *("peft", "datasets", "headway.integrations.accelerate", "headway.integrations.lightning"),
)
"""Modules of the recipes, which each of their ranks would import for 6 s."""

needs_lightning = pytest.mark.skipif(
    find_spec("lightning") is None, reason="LIGHTNING IS NOT TESTED: pip install 'headway[lightning]'"
)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> Iterator[None]:
    with preloading(*LOADED):
        yield


@pytest.fixture
def held(job: Callable[..., Job]) -> Callable[[str], Job]:
    """Makes a job of a recipe, which writes into the job's folder."""

    def make(recipe: str) -> Job:
        made = job("held.py", FOLDER / f"{recipe}_after.py")
        made.env = {"HELD_IN": str(made.folder)}
        return made

    return make


@pytest.mark.parametrize("recipe", [*RECIPES, "fsdp2"])
def test_a_recipe_changes_few_lines(recipe: str) -> None:
    before, after = (FOLDER / f"{recipe}_{name}.py" for name in ("before", "after"))
    assert 0 < changed_lines(before, after) <= MOST_CHANGED


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_grows_shrinks_and_loses_a_rank_in_place(held: Callable[[str], Job], recipe: str) -> None:
    if find_spec(RECIPES[recipe]) is None:
        pytest.skip(f"{RECIPES[recipe].upper()} IS NOT TESTED: pip install -e '.[dev]'")
    grows_shrinks_and_loses_a_rank(lambda: held(recipe))


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_lightning
def test_lightning_counts_max_steps_over_changes(job: Callable[..., Job]) -> None:
    alone, live = grows_shrinks_and_loses_a_rank(lambda: job("held.py", SCRIPTS / "lit.py"))
    assert [done.samples for done in alone.messages(Completed)] == [3 * 157 + 5 * 16]
    assert list(losses(live.messages(Metrics))) == [157, 314, 471, 551]


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_lightning
def test_lightning_scales_half_precision_over_changes(job: Callable[..., Job]) -> None:
    def make() -> Job:
        made = job("held.py", SCRIPTS / "lit.py")
        made.env = {"HALF": "1"}
        return made

    alone, live = grows_shrinks_and_loses_a_rank(make, HALF_TOLERANCE)
    # It doubles after three good steps, and each epoch has one in which a sample overflows, on whichever rank.
    scales = {157: 64.0, 314: 128.0, 471: 512.0, 551: 1024.0}
    assert losses(alone.messages(Metrics), "scale") == scales
    assert losses(live.messages(Metrics), "scale") == scales


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_lightning
def test_lightning_steps_several_optimizers_in_turns_over_changes(job: Callable[..., Job]) -> None:
    alone, _ = grows_shrinks_and_loses_a_rank(lambda: job("held.py", SCRIPTS / "lit_game.py"))
    assert [done.samples for done in alone.messages(Completed)] == [4 * 157]


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_lightning
def test_lightning_keeps_buffers_equal_in_manual_optimization(job: Callable[..., Job]) -> None:
    started = job("held.py", SCRIPTS / "lit_game.py")
    started.env = {"NORM": "1"}
    ended = started.run(2)
    assert codes(ended) == [0, 0], ended.output()


def grows_shrinks_and_loses_a_rank(make: Callable[[], Job], tolerance: float = TOLERANCE) -> tuple[Job, Live]:
    """Train one of these jobs alone and another one over three changes, and compare their losses."""
    alone = make()
    undisturbed = alone.run(1)
    assert codes(undisturbed) == [0], undisturbed.output()

    live = Live(make())
    live.start(1, steps=7)
    for change in (
        lambda: live.newcomers(live.members, 2),
        lambda: live.newcomers(live.members[1:], 0),  # without the rank that began
        lambda: lose(live, live.members[0]),
    ):
        live.wait_until_held()
        live.give(change())
        live.allow(5)
        switched = live.wait_for_switch()
        assert all(one.lost_steps <= 1 for one in switched)
    live.allow_all()
    assert live.wait() == [0], live.output()

    assert not live.messages(Restored)
    assert len(live.messages(Left)) == 1
    assert live.messages(Completed)[0].samples == alone.messages(Completed)[0].samples
    assert all(audit.exactly_once for audit in live.messages(EpochClosed))
    expected = losses(alone.messages(Metrics))
    first, *_, last = expected.values()
    assert last < first
    assert losses(live.messages(Metrics)) == pytest.approx(expected, rel=tolerance)
    return alone, live


def losses(reported: list[Metrics], name: str = "eval_loss") -> dict[int, float]:
    """The losses of the test data, or another value, by the samples trained before."""
    return {one.samples: one.values[name] for one in reported if name in one.values}


@pytest.mark.slow
def test_the_sharded_recipe_changes_size_in_place_and_restarts_after_a_loss(
    held: Callable[[str], Job],
) -> None:
    alone = held("fsdp2")
    undisturbed = alone.run(1)
    assert codes(undisturbed) == [0], undisturbed.output()

    live = Live(held("fsdp2"))
    live.start(1, steps=7, HEADWAY_CHECKPOINT_EVERY_S="0.1")
    for change in (
        lambda: live.newcomers(live.members, 2),
        lambda: live.newcomers(live.members[1:], 0),
    ):
        live.wait_until_held()
        live.give(change())
        live.allow(5)
        assert all(one.lost_steps == 0 for one in live.wait_for_switch())
    live.wait_until_held()
    live.until(lambda: live.messages(Checkpointed))
    for member in live.members:  # an agent ends the ranks beside the lost one
        live.kill(member)
    live.allow_all()
    again = live.job.run(1, generation=live.generation + 1)
    assert codes(again) == [0], again.output()

    assert len(again.messages(Restored)) == 1
    expected = printed(undisturbed.output())
    assert expected[30] < expected[0]
    outputs = [generation.output() for generation in live.job.generations]
    assert printed("".join(outputs)) == pytest.approx(expected, rel=TOLERANCE)


def printed(output: str) -> dict[int, float]:
    """The losses that every rank prints, by step."""
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss ([\d.]+)", output)}
