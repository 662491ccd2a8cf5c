"""A run of one process, made of its parts: what scripts may do wrong, and what they may do early."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from headway.preemption import StopRequest
from headway.train.collectives.gloo import Gloo
from headway.train.host.environment import Environment
from headway.train.membership.control import Mailbox
from headway.train.membership.team import Team
from headway.train.session import Run
from tests.waiting import until


def make_run(**environment: Any) -> Run:
    told = Environment(**environment)
    mailbox, stop = Mailbox(told.control, rank=0, generation=told.generation), StopRequest()
    team = Team(told, Gloo(), 30.0, stop, Mailbox(None, rank=0, generation=1))
    team.start(told)
    return Run(told, torch.device("cpu"), team, mailbox, stop)


def prepared(run: Run) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(1, 1)
    wrapped, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return wrapped, optimizer


def numbers(samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(samples, dtype=torch.float32).unsqueeze(1))


def messages(control: Path, kind: str) -> list[dict[str, Any]]:
    lines = (control / "rank-0.jsonl").read_text().splitlines()
    return [message for message in map(json.loads, lines) if message["type"] == kind]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"global_batch": 0}, "global_batch is 0"),
        ({"global_batch": 4, "max_local_batch": 0}, "max_local_batch is 0"),
        ({"global_batch": 4, "seed": -1}, "seed is -1"),
    ],
)
def test_bounds_are_refused_by_name(arguments: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_run().loader(numbers(3), **arguments)


def test_data_that_has_no_position_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        make_run().loader(numbers(0), global_batch=4)
    with pytest.raises(TypeError, match="map-style"):
        make_run().loader(Stream(), global_batch=4)


def test_calls_in_the_wrong_order_say_what_is_missing() -> None:
    run = make_run()
    with pytest.raises(RuntimeError, match=r"call run\.prepare"):
        run.epochs(1)
    loader = run.loader(numbers(3), global_batch=4)
    with pytest.raises(RuntimeError, match=r"inside `run\.epochs"):
        next(iter(loader))
    with pytest.raises(RuntimeError, match="one source of training data"):
        run.loader(numbers(3), global_batch=4)
    prepared(run)
    with pytest.raises(RuntimeError, match="was called before"):
        prepared(run)
    with pytest.raises(ValueError, match="at least 0"):
        run.epochs(-1)
    run.epochs(1)
    with pytest.raises(RuntimeError, match="was begun before"):
        run.train_steps(1)


def test_the_job_s_batch_overrides_the_script_s() -> None:
    run = make_run(global_batch=5)
    prepared(run)
    loader = run.loader(numbers(12), global_batch=100)
    assert loader.steps_per_epoch == 3
    assert [len(batch) for _ in run.epochs(1) for (batch,) in loader] == [5, 5, 2]


def test_workers_fetch_the_same_batches() -> None:
    def batches(num_workers: int) -> list[list[float]]:
        run = make_run()
        prepared(run)
        loader = run.loader(numbers(11), global_batch=4, max_local_batch=3, num_workers=num_workers)
        return [batch.flatten().tolist() for _ in run.epochs(2) for (batch,) in loader]

    assert batches(1) == batches(0)


class Words(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"length": index, "word": "x" * index}


def test_samples_are_collated_as_by_torch_or_by_the_script() -> None:
    run = make_run()
    prepared(run)
    loader = run.loader(Words(), global_batch=3)
    (batch,) = (batch for _ in run.epochs(1) for batch in loader)
    assert sorted(batch["word"]) == ["", "x", "xx"]
    assert isinstance(batch["length"], torch.Tensor)

    run = make_run()
    prepared(run)
    loader = run.loader(Words(), global_batch=3, collate_fn=len)
    assert [batch for _ in run.epochs(1) for batch in loader] == [3]


def test_an_epoch_that_the_script_leaves_is_not_audited_and_the_next_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(control=tmp_path)
    model, optimizer = prepared(run)
    loader = run.loader(numbers(10), global_batch=4)
    for epoch in run.epochs(2):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            if epoch == 0:
                break  # after the step: it counts
    assert [audit["epoch"] for audit in messages(tmp_path, "epoch_closed")] == [1]
    assert all(audit["exactly_once"] for audit in messages(tmp_path, "epoch_closed"))
    assert "after 4 of 10 samples" in capsys.readouterr().err
    assert [done["samples"] for done in messages(tmp_path, "completed")] == [20]


def test_a_checkpoint_of_other_data_is_refused_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    kept = {"checkpoint_uri": str(tmp_path), "checkpoint_every_s": 1e-9}
    run = make_run(**kept)
    prepared(run)
    steps = iter(run.loader(numbers(10), global_batch=4, seed=1))
    epochs = run.epochs(1)
    next(epochs)
    next(steps)
    next(steps)  # which begins to save the first step
    asyncio.run(until(lambda: any(tmp_path.rglob("manifest.json"))))

    for samples, seed in ((11, 1), (10, 2)):
        run = make_run(**kept)
        prepared(run)
        run.loader(numbers(samples), global_batch=4, seed=seed)
        with pytest.raises(ValueError, match="4 samples into an epoch of 10 samples with seed 1"):
            run.epochs(1)

    run = make_run(**kept)
    prepared(run)
    loader = run.loader(numbers(10), global_batch=4, seed=1)
    assert [len(batch) for _ in run.epochs(1) for (batch,) in loader] == [4, 2]


def test_metrics_are_sent_without_what_is_not_finite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(control=tmp_path)
    run.report(loss=torch.tensor([0.5], requires_grad=True), bad=float("nan"), worse=float("-inf"))
    assert [message["values"] for message in messages(tmp_path, "metrics")] == [{"loss": 0.5}]
    complaints = capsys.readouterr().err
    assert "bad is nan" in complaints
    assert "worse is -inf" in complaints
    with pytest.raises((TypeError, ValueError)):
        run.report(name="text")


def test_metrics_are_printed_outside_headway(capsys: pytest.CaptureFixture[str]) -> None:
    make_run().report(loss=0.25, accuracy=torch.tensor(1.0))
    assert capsys.readouterr().out == "epoch 0  samples 0  loss 0.25  accuracy 1\n"


def test_short_and_first_steps_do_not_count_as_step_times(tmp_path: Path) -> None:
    run = make_run(control=tmp_path)
    prepared(run)
    loader = run.loader(numbers(10), global_batch=4, max_local_batch=3)
    for _ in run.epochs(2):
        for _batch in loader:
            pass
    progress = messages(tmp_path, "progress")
    assert (
        sum(message["steps"] for message in progress) == 3
    )  # of 6: the first and two short ones are left out
    last = progress[-1]
    assert (last["samples"], last["total_samples"]) == (20, 20)
    assert (last["global_batch"], last["local_batch"], last["accumulation"]) == (4, 2, 2)
    assert [message["samples"] for message in messages(tmp_path, "first_step")] == [4]


ADAPTIVE: dict[str, Any] = {
    "global_batch": 4,
    "most_global_batch": 16,
    "start_global_batch": 16,
    "lr_rule": "none",
}


def test_an_adaptive_job_ends_at_the_progress_of_its_epochs(tmp_path: Path) -> None:
    """At an unscaled rate a step of 16 samples makes the progress of one of 4: two epochs take 16 such steps."""
    run = make_run(control=tmp_path, **ADAPTIVE)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, step_size=100) for _ in range(2)]
    wrapped, optimizer, by_step, by_epoch = run.prepare(model, optimizer, *schedules)
    loader = run.loader(numbers(30), global_batch=4)
    assert loader.steps_per_epoch == 8
    assert run.progress == 0.0
    made = []
    for _ in run.epochs(2):
        for (batch,) in loader:
            wrapped(batch).mean().backward()
            optimizer.step()
            by_step.step()
        by_epoch.step()
        made.append(run.progress)
    assert made == [0.25 * epoch for epoch in range(1, 9)]
    assert (run.steps, by_step.last_epoch, by_epoch.last_epoch) == (16, 16, 2)
    last = messages(tmp_path, "progress")[-1]
    assert (last["samples"], last["progress"], last["total_progress"]) == (240, 60.0, 60.0)
    assert len(messages(tmp_path, "epoch_closed")) == 8


def test_training_may_end_within_an_epoch_and_stays_at_its_end(tmp_path: Path) -> None:
    kept = {"checkpoint_uri": str(tmp_path / "checkpoints"), "control": tmp_path}
    for attempt in (1, 2):
        run = make_run(**kept, **{**ADAPTIVE, "start_global_batch": 12})
        prepared(run)
        loader = run.loader(numbers(30), global_batch=4)
        sizes = [len(batch) for _ in run.epochs(2) for (batch,) in loader]
        # Steps of 12, 12 and 6 samples are worth a third each: 10 an epoch.
        assert sizes == ([12, 12, 6] * 6 if attempt == 1 else [])
        assert run.progress == pytest.approx(2.0)
    run = make_run(**ADAPTIVE)
    prepared(run)
    loader = run.loader(numbers(100), global_batch=4)
    sizes = [len(batch) for _ in run.epochs(1) for (batch,) in loader]
    assert sizes == ([16] * 6 + [4]) * 4
    run = make_run(control=tmp_path / "within", **{**ADAPTIVE, "start_global_batch": 15, "global_batch": 10})
    (tmp_path / "within").mkdir()
    prepared(run)
    loader = run.loader(numbers(40), global_batch=10)
    sizes = [len(batch) for _ in run.epochs(1) for (batch,) in loader]
    assert sizes == [15, 15, 10, 15, 15], "of the second epoch, ten samples are not needed"
    (closed,) = messages(tmp_path / "within", "epoch_closed")
    assert (closed["epoch"], closed["exactly_once"], closed["samples_seen"]) == (0, True, 40)
    (completed,) = messages(tmp_path / "within", "completed")
    assert completed["samples"] == 70


def test_until_chooses_the_end(tmp_path: Path) -> None:
    run = make_run(control=tmp_path, **ADAPTIVE)
    prepared(run)
    loader = run.loader(numbers(32), global_batch=4)
    with pytest.raises(ValueError, match='must be "progress" or "epochs"'):
        run.epochs(1, until="samples")  # type: ignore[arg-type]
    assert [len(batch) for _ in run.epochs(2, until="epochs") for (batch,) in loader] == [16] * 4
    last = messages(tmp_path, "progress")[-1]
    assert (last["samples"], last["progress"], last["total_progress"]) == (64, 16.0, None)
    assert run.progress == 0.5


class Wrapping(torch.optim.Optimizer):
    """An optimizer that has another do its work."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


@pytest.mark.parametrize("kind", ["unprepared", "of another model", "within a prepared one"])
def test_an_optimizer_that_was_not_prepared_is_named_once(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, model = make_run(), nn.Linear(1, 1)
    other = torch.optim.Adam((nn.Linear(1, 1) if kind == "of another model" else model).parameters())
    given: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if kind == "within a prepared one":
        given = Wrapping(other)
    wrapped, optimizer = run.prepare(model, given)
    loader = run.loader(numbers(12), global_batch=4)
    for _ in run.epochs(1):
        for (batch,) in loader:
            optimizer.zero_grad()
            wrapped(batch).mean().backward()
            optimizer.step()
            if kind != "within a prepared one":
                other.step()
    named = capsys.readouterr().err.count("Adam steps weight, but was not given to prepare()")
    assert named == (kind == "unprepared")
