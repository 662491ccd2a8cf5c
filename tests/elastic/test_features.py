"""Clipping, scaling, averaging and other work on gradients and models holds when the size changes and a rank is lost.

The table "What holds" of docs/training-library.md claims what these tests show.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.elastic.harness import Job, codes
from tests.elastic.live import Live
from tests.elastic.test_live import lose

EXACT = {"rtol": 1e-9, "atol": 1e-12}
HALF = {"rtol": 1e-2, "atol": 2e-3}
"""With products in half precision."""


def result_of(folder: Path, size: int, rank: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    name = f"{rank}-of-{size}"
    state = torch.load(folder / f"{name}.pt", map_location="cpu", weights_only=True)
    return state, json.loads((folder / f"{name}.json").read_text())


@pytest.fixture
def featured(job: Callable[..., Job]) -> Callable[..., Job]:
    """Makes a job with one feature."""

    def make(feature: str, *arguments: object) -> Job:
        made = job("features.py", "--feature", feature, *arguments)
        made.arguments = [*made.arguments, "--result", str(made.folder)]
        return made

    return make


@pytest.mark.parametrize(
    ("feature", "tolerance"),
    [
        ("accumulation", EXACT),
        ("clipping", EXACT),
        ("schedule", EXACT),
        ("ema", EXACT),
        ("optimizers", EXACT),
        ("checkpointing", EXACT),
        ("unused", EXACT),
        ("branches", EXACT),
        ("bf16", HALF),
        ("scaler", HALF),
        pytest.param("compile", EXACT, marks=pytest.mark.slow),  # compiles a graph in each process
        pytest.param("compile_after", EXACT, marks=pytest.mark.slow),
        pytest.param("inductor", EXACT, marks=pytest.mark.slow),  # compiles for a minute
    ],
)
def test_a_resize_and_a_loss_change_no_result(
    featured: Callable[..., Job], feature: str, tolerance: dict[str, float]
) -> None:
    alone = featured(feature)
    undisturbed = alone.run(1)
    assert codes(undisturbed) == [0], undisturbed.output()
    state, facts = result_of(alone.folder, 1, 0)
    assert facts["loss"] < facts["first_loss"] / 2, "it must learn, or equal results prove nothing"

    live = Live(featured(feature))
    live.start(1, steps=3)
    for change in (
        lambda: live.newcomers(live.members, 2),
        lambda: lose(live, live.members[1]),
        lambda: live.newcomers(live.members[1:], 1),
    ):
        live.wait_until_held()
        live.give(change())
        live.allow(4)
        live.wait_for_switch()
    live.allow_all()
    assert live.wait() == [0, 0], live.output()
    for rank in range(2):
        trained, its = result_of(live.job.folder, 2, rank)
        torch.testing.assert_close(trained, state, **tolerance)
        assert (its["rate"], its["scale"]) == (facts["rate"], facts["scale"])
        assert its["graphs"] <= facts["graphs"] + 1, "one more graph, for batches of any length"


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "sizes", "graphs"), [(12, (2, 3, 1, 4), 2), (3, (2, 3), 3)])
def test_any_number_of_resizes_compiles_one_more_graph_and_one_for_single_samples(
    featured: Callable[..., Job], batch: int, sizes: tuple[int, ...], graphs: int
) -> None:
    live = Live(featured("compile", "--batch", batch))
    live.start(1, steps=2)
    for size in sizes:
        live.wait_until_held()
        kept = live.members[:size]
        live.give(live.newcomers(kept, size - len(kept)))
        live.allow(2)
        live.wait_for_switch()
    live.allow_all()
    assert live.wait() == [0] * sizes[-1], live.output()
    _, facts = result_of(live.job.folder, sizes[-1], 0)
    assert set(facts["lengths"]) >= {batch, *(batch // size for size in sizes if batch % size == 0)}
    assert facts["graphs"] == graphs
