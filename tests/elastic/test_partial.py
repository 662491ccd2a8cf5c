"""Structured partial back-propagation with real ranks: each layer's gradient is the mean over the ranks that computed it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headway.contract.runtime import Completed, EpochClosed, Switched
from headway.train.data.position import order
from tests.elastic.devices import OVER_STREAMS
from tests.elastic.harness import SCRIPTS, Job, codes
from tests.elastic.live import Live

SAMPLES, BATCH, EPOCHS = 60, 12, 2
STEPS = EPOCHS * SAMPLES // BATCH
CHAIN = [["0.weight"], ["1.weight", "1.bias"], ["3.weight", "3.bias"], ["5.weight", "5.bias"]]
LAYERS = {
    "chain": CHAIN,
    "wide": CHAIN,
    "tied": [
        ["embedding.weight"],
        *(
            [f"blocks.{block}.{name}" for name in ("norm.weight", "norm.bias", "layer.weight", "layer.bias")]
            for block in range(3)
        ),
    ],
}
"""Parameters from the first layer to the last. The weight that embedding and head share counts as the first."""
NOT_COMPUTED = {
    # With two ranks: depth 1/2 and 1. With three: 1/2, 3/4 and 1. The layers that a rank at each level leaves out.
    ("chain", 2): [2, 0],
    ("chain", 3): [2, 1, 0],
    ("wide", 2): [2, 0],
    ("tied", 2): [2, 0],
    ("tied", 3): [2, 1, 0],
}


@pytest.fixture
def partial(job: Callable[..., Job]) -> Callable[..., Job]:
    """Makes a job of `scripts/partial.py` that goes down to half of the layers, or to `min_depth`."""

    def make(*arguments: object, min_depth: float | None = 0.5) -> Job:
        env = {} if min_depth is None else {"HEADWAY_MIN_DEPTH": str(min_depth)}
        made = job("partial.py", *arguments, **env)
        made.arguments = [*made.arguments, "--result", str(made.folder)]
        return made

    return make


def notes(folder: Path) -> dict[tuple[int, int], dict[int, dict[str, Any]]]:
    """Return the notes of all ranks by step (epoch, samples of the epoch before it) and rank.

    A repeated step has the notes of its last run.
    """
    found: dict[tuple[int, int], dict[int, dict[str, Any]]] = {}
    files = [torch.load(file, map_location="cpu", weights_only=True) for file in folder.glob("notes-*.pt")]
    for one in sorted((one for file in files for one in file), key=lambda one: one["generation"]):
        found.setdefault(one["step"], {})[one["rank"]] = one
    return dict(sorted(found.items()))


def models() -> Any:
    spec = importlib.util.spec_from_file_location("models", SCRIPTS / "models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gradient(name: str, before: dict[str, torch.Tensor], samples: list[int]) -> dict[str, torch.Tensor]:
    """The gradient of the mean loss of these samples, in one process and through the whole model."""
    model = models().make_model(name)
    model.load_state_dict({**model.state_dict(), **before})
    torch.manual_seed(0)
    x = torch.randint(0, 7, (SAMPLES, 5))[samples]
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.roll(1, dims=1).flatten())
    loss.backward()
    return {key: one.grad for key, one in model.named_parameters() if one.grad is not None}


def expected(name: str, step: dict[int, dict[str, Any]], number: int) -> dict[str, torch.Tensor]:
    """The gradients of a step by hand: of each layer the mean over the samples of the ranks that computed it.

    `number` is that of the step in its epoch; -1: every rank computes everything.
    """
    ranks = len(step)
    result = {}
    for layer, parameters in enumerate(LAYERS[name]):
        levels = {rank: (rank + number) % ranks for rank in step}
        computing = [rank for rank in step if number < 0 or NOT_COMPUTED[name, ranks][levels[rank]] <= layer]
        samples = [sample for rank in computing for sample in step[rank]["samples"]]
        whole = gradient(name, step[0]["before"], samples)
        result |= {parameter: whole[parameter] for parameter in parameters}
    return result


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for key, one in wanted.items():
        torch.testing.assert_close(found[key], one, rtol=1e-9, atol=1e-12)


def assert_replicas_are_identical(folder: Path, size: int) -> None:
    states = [
        torch.load(folder / f"{rank}-of-{size}.pt", map_location="cpu", weights_only=True)
        for rank in range(size)
    ]
    for state in states[1:]:
        assert all(torch.equal(state[key], states[0][key]) for key in states[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ranks", "limit"),
    [("chain", 2, None), ("chain", 3, 2), ("wide", 2, None), ("tied", 2, 3), ("tied", 3, None)],
)
def test_each_layer_has_the_mean_over_the_ranks_that_computed_it(
    partial: Callable[..., Job], name: str, ranks: int, limit: int | None
) -> None:
    trained = partial("--model", name, *(["--max-local", limit] if limit else []))
    ended = trained.run(ranks)
    assert codes(ended) == [0] * ranks, ended.output()
    assert_replicas_are_identical(trained.folder, ranks)
    steps = notes(trained.folder)
    assert len(steps) == STEPS
    for number, ((epoch, samples), step) in enumerate(steps.items()):
        assert sorted(step) == list(range(ranks))
        taken = [sample for rank in range(ranks) for sample in step[rank]["samples"]]
        in_order = order(SAMPLES, seed=3, epoch=epoch)[samples : samples + BATCH]
        assert sorted(taken) == sorted(in_order.tolist())
        # The first step surveys the model.
        wanted = expected(name, step, samples // BATCH if number else -1)
        for one in step.values():
            assert_equal(one["gradients"], wanted)
    audits = ended.messages(EpochClosed)
    assert [audit.exactly_once for audit in audits] == [True] * EPOCHS


@OVER_STREAMS
def test_partial_gradients_differ_from_whole_ones(partial: Callable[..., Job]) -> None:
    """The comparison by hand must be able to fail."""
    trained = partial()
    trained.run(2)
    step = notes(trained.folder)[0, BATCH]
    whole = expected("chain", step, -1)
    part = expected("chain", step, 1)
    assert not torch.allclose(whole["0.weight"], part["0.weight"], rtol=1e-3)
    torch.testing.assert_close(whole["5.bias"], part["5.bias"], rtol=1e-9, atol=1e-12)


def test_the_rank_that_goes_less_deep_takes_more_samples(partial: Callable[..., Job]) -> None:
    trained = partial()
    trained.run(2)
    shares = [
        {rank: len(one["samples"]) for rank, one in step.items()} for step in notes(trained.folder).values()
    ]
    # Costs 2/3 and 1: of 12 samples 7 and 5, in turn. Measured costs follow after ten steps of each rank and level.
    assert shares[:5] == [{0: 6, 1: 6}, {0: 5, 1: 7}, {0: 7, 1: 5}, {0: 5, 1: 7}, {0: 7, 1: 5}]


@pytest.mark.parametrize("name", ["outside", "bypassed"])
def test_a_model_that_cannot_be_cut_trains_as_without(partial: Callable[..., Job], name: str) -> None:
    shape = ["--model", name, "--even"]
    cut, plain = partial(*shape), partial(*shape, min_depth=None)
    ended = cut.run(2)
    assert codes(ended) == [0, 0], ended.output()
    plain.run(2)
    assert ended.output().count("partial back-propagation does not suit this model") == 1
    for rank in range(2):
        states = [
            torch.load(one.folder / f"{rank}-of-2.pt", map_location="cpu", weights_only=True)
            for one in (cut, plain)
        ]
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[1])


@pytest.mark.slow
def test_equal_samples_where_the_script_wants_them(partial: Callable[..., Job]) -> None:
    trained = partial("--even")
    trained.run(2)
    assert_replicas_are_identical(trained.folder, 2)
    for number, ((_, samples), step) in enumerate(notes(trained.folder).items()):
        assert [len(one["samples"]) for one in step.values()] == [6, 6]
        wanted = expected("chain", step, samples // BATCH if number else -1)
        assert_equal(step[0]["gradients"], wanted)


def test_a_rank_alone_trains_as_without(partial: Callable[..., Job]) -> None:
    cut, plain = partial(), partial(min_depth=None)
    for one in (cut, plain):
        assert codes(one.run(1)) == [0]
    states = [
        torch.load(one.folder / "0-of-1.pt", map_location="cpu", weights_only=True) for one in (cut, plain)
    ]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[1])


@pytest.mark.slow
def test_members_come_and_are_lost_in_between(partial: Callable[..., Job]) -> None:
    live = Live(partial("--epochs", 4))
    live.start(2, steps=3)
    live.wait_until_held()
    grown = live.newcomers(live.members, 1)
    live.give(grown)
    live.allow(5)
    live.wait_until_held()
    lost = live.members[1]
    # It has taken eight steps: if it died before its note of the last, the test would take its part for nobody's.
    file = live.job.folder / f"notes-{live.processes[lost].handle.pid}.pt"
    live.until(lambda: file.exists() and len(torch.load(file, map_location="cpu", weights_only=True)) == 8)
    live.kill(lost)
    live.allow_all()
    live.give(live.survivors([one for one in live.members if one != lost]))
    assert live.wait() == [0, 0], live.output()
    folder = live.job.folder
    assert_replicas_are_identical(folder, 2)
    steps = notes(folder)
    assert len(steps) == 4 * SAMPLES // BATCH
    generation = 0
    sizes = set()
    for (_, samples), noted in steps.items():
        newest = max(one["generation"] for one in noted.values())
        step = {rank: one for rank, one in noted.items() if one["generation"] == newest}
        wanted = expected("chain", step, samples // BATCH if newest == generation else -1)
        generation = newest
        sizes.add(len(step))
        for one in step.values():
            assert_equal(one["gradients"], wanted)
    assert sizes == {2, 3}
    switched = live.processes[live.members[0]].messages(Switched)
    assert [one.world_size for one in switched] == [3, 2]
    assert live.processes[live.members[0]].messages(Completed)
