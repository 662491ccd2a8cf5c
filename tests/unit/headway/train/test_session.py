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
    team = Team(told, Gloo(), 30.0, stop)
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
    with pytest.raises(RuntimeError, match="inside `for epoch in"):
        next(iter(loader))
    with pytest.raises(RuntimeError, match="one training loader"):
        run.loader(numbers(3), global_batch=4)
    prepared(run)
    with pytest.raises(RuntimeError, match="was called before"):
        prepared(run)
    with pytest.raises(ValueError, match="at least 0"):
        run.epochs(-1)
    run.epochs(1)
    with pytest.raises(RuntimeError, match="was called before"):
        run.epochs(1)


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
