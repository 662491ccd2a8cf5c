"""A loop by steps in one process: what the body takes, and what scripts may do wrong."""

from __future__ import annotations

import pytest
import torch

from tests.unit.headway.train.test_session import make_run, numbers, prepared


def test_the_body_runs_once_a_step_if_it_takes_all_batches() -> None:
    run = make_run()
    prepared(run)
    loader = run.loader(numbers(10), global_batch=4, max_local_batch=3)
    taken = [(step, [len(batch) for (batch,) in loader], run.accumulating) for step in run.train_steps(4)]
    assert taken == [(0, [2, 2], False), (1, [2, 2], False), (2, [2], False), (3, [2, 2], False)]
    assert run.steps == 4
    assert run.progress == 1.4


def test_the_body_runs_again_for_the_same_step_if_it_takes_one_batch() -> None:
    run = make_run()
    prepared(run)
    draws = run.indices(10, global_batch=4, max_local_batch=3)
    taken = [(step, len(next(draws)), run.accumulating) for step in run.train_steps(2)]
    assert taken == [(0, 2, True), (0, 2, False), (1, 2, True), (1, 2, False)]
    assert run.progress == 2.0


def test_an_evaluation_is_due_at_step_0_and_after_each_so_many_steps_before_the_first_batch() -> None:
    run = make_run()
    prepared(run)
    draws = run.indices(10, global_batch=4, max_local_batch=2)
    due = []
    for step in run.train_steps(5):
        due += [step] * run.evaluate_every(2)
        next(draws)
        assert not run.evaluate_every(2)
    assert due == [0, 2, 4]
    with pytest.raises(ValueError, match="every 0 steps"):
        run.evaluate_every(0)


def test_a_body_that_takes_no_batch_or_too_many_is_refused() -> None:
    run = make_run()
    prepared(run)
    draws = run.indices(10, global_batch=4)
    with pytest.raises(RuntimeError, match="inside `for step in"):
        next(draws)
    steps = run.train_steps(2)
    next(steps)
    next(draws)
    with pytest.raises(RuntimeError, match="no further batch"):
        next(draws)
    assert next(steps) == 1
    with pytest.raises(RuntimeError, match="took no batch"):
        next(steps)


def test_a_script_that_leaves_the_loop_keeps_the_step_that_it_took() -> None:
    run = make_run()
    model, optimizer = prepared(run)
    draws = run.indices(10, global_batch=4)
    for _ in run.train_steps(5):
        model(next(draws).float().unsqueeze(1)).mean().backward()
        optimizer.step()
        if run.steps == 2:
            break
    assert run.steps == 3


@pytest.mark.parametrize(("every", "named"), [(1, 0), (4, 1)])
def test_a_batch_without_a_step_is_named_once(
    every: int, named: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()
    model, optimizer = prepared(run)
    draws = run.indices(10, global_batch=4, max_local_batch=2)
    for step in run.train_steps(9):
        for indices in draws:
            (model(indices.float().unsqueeze(1)).mean() / every).backward()
            if (step + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
    said = capsys.readouterr().err
    assert said.count("ended without optimizer.step()") == named
    assert said.count("use max_local_batch") == named


def test_random_indices_have_no_epochs_and_need_a_population() -> None:
    run = make_run()
    prepared(run)
    with pytest.raises(ValueError, match="population is 0"):
        run.indices(0, global_batch=4)
    run.indices(10, global_batch=4)
    with pytest.raises(RuntimeError, match="have no epochs"):
        run.epochs(1)
    with pytest.raises(ValueError, match="number of steps is -1"):
        run.train_steps(-1)


def test_a_step_has_the_indices_of_the_seed() -> None:
    def taken(seed: int) -> list[list[int]]:
        run = make_run()
        prepared(run)
        draws = run.indices(1000, global_batch=4, seed=seed)
        return [torch.cat(list(draws)).tolist() for _ in run.train_steps(3)]

    assert taken(1) == taken(1) != taken(2)
