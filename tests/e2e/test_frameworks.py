"""Recipes of frameworks change size in place through the whole of Headway."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from headway.contract.orders import ORDER_FILE
from headway.contract.spec import JobSpec
from tests.e2e.conftest import Cluster, submit_at
from tests.elastic.allowed_steps import AllowedSteps

ROOT = Path(__file__).parents[2]
HELD = ROOT / "tests" / "elastic" / "scripts" / "held.py"


@dataclass(frozen=True)
class Recipe:
    """A recipe of `examples/frameworks`, the sizes that it goes through, and what it trains in all."""

    name: str
    sizes: tuple[int, ...]
    steps: int
    samples: int
    epochs: int
    """Whole epochs."""


RECIPES = [
    Recipe("trainer", (1, 2, 1), steps=40, samples=2 * 300 + 2 * 16, epochs=2),
    Recipe("fsdp2", (2, 3, 2), steps=30, samples=300 + 5 * 12, epochs=1),
]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_changes_size_in_place(cluster: Cluster, name: str, tmp_path: Path, recipe: Recipe) -> None:
    if find_spec("transformers") is None:
        pytest.skip("TRANSFORMERS IS NOT TESTED: pip install -e '.[dev]'")
    spec = {
        "name": name,
        "workdir": str(ROOT / "examples" / "frameworks"),
        "run": f"python {HELD} {recipe.name}_after.py",
        "env": {"STEPS_ALLOWED": str(tmp_path), "OMP_NUM_THREADS": "1"},
        "elastic": {"min": 1, "max": max(recipe.sizes)},
    }
    steps = AllowedSteps(tmp_path)
    steps.add(3)
    first, *sizes = recipe.sizes
    client, job_id = cluster.client, submit_at(cluster.client, JobSpec.model_validate(spec), first)
    cluster.until(lambda: steps.all_taken, "the first steps")
    for generation, size in enumerate(sizes, start=2):
        client.resize(job_id, size)
        cluster.until(lambda number=generation: is_ordered(cluster, job_id, number), "the order")  # type: ignore[misc]
        steps.add(6)
        cluster.until(lambda: steps.all_taken, "the change and steps of the new size")
        cluster.until(lambda number=generation: client.job(job_id).generation == number, "its report")  # type: ignore[misc]
        assert client.job(job_id).size == size
    steps.add(10**9)

    done = cluster.ended(job_id)
    assert (done.progress.train_step, done.progress.samples) == (recipe.steps, recipe.samples)
    assert (done.progress.epochs_exact, done.progress.epochs_audited) == (recipe.epochs, recipe.epochs)
    assert (done.attempt, done.preemptions) == (1, 0)
    assert (done.progress.lost_steps, done.progress.lost_samples) == (0, 0)
    events = list(client.events(job_id))
    switched = [one.data for one in events if one.kind == "switch"]
    assert [(one["from"], one["to"], one["how"]) for one in switched] == [
        (before, after, "live") for before, after in zip(recipe.sizes, sizes, strict=False)
    ]
    assert [one.data["slots"] for one in events if one.kind == "allocate"] == [first]
    assert not [one for one in events if one.kind == "restore"]


def is_ordered(cluster: Cluster, job_id: str, generation: int) -> bool:
    """Return True if the order for this generation has reached the ranks on every node."""
    orders = [folder / ORDER_FILE for folder in cluster.stack.data.glob(f"agents/*/runs/{job_id}/*/control")]
    return all(
        order.exists() and json.loads(order.read_text())["generation"] == generation for order in orders
    )
