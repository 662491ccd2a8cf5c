"""Messages of rank 0: the plan of a whole step, the audit, and a change of the batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.contract.orders import BatchPlan
from headway.contract.rank_lines import from_line
from headway.contract.runtime import BatchChanged, Completed, EpochClosed, Message, Progress
from headway.train.checkpoint.replica import Place
from headway.train.data.batching import Batching, Bounds
from headway.train.data.boundary import Agreement, Statement
from headway.train.data.goal import TrainingGoal
from headway.train.data.ledger import Ledger
from headway.train.data.position import Position
from headway.train.gradients.noise import Measurement
from headway.train.membership.control import Mailbox
from headway.train.reporting import Reporter

BOUNDS = Bounds(global_batch=16, most_global=64, max_local=3, rule="sqrt")
PLACE = Place(Position(2, 10), Ledger(), dataset_samples=20, seed=0)


def batching_of(size: int) -> Batching:
    return Batching(BOUNDS, rank=0, world_size=size)


def said(folder: Path) -> list[Message]:
    return [from_line(line) for line in (folder / "rank-0.jsonl").read_text().splitlines()]


def test_progress_says_how_a_step_is_divided(tmp_path: Path) -> None:
    reporter, batching = Reporter(Mailbox(tmp_path, rank=0, generation=1)), batching_of(2)
    reporter.goal = TrainingGoal.of_epochs(3, 20, 16, by_progress=False)
    reporter.stepped(0.5, 0.375, usual=True)
    reporter.stepped(0.25, 0.25, usual=True)
    reporter.progress(PLACE, batching, is_main=True)
    batching.add_noise(Measurement(2.0, 32.0))
    reporter.progress(PLACE, batching, is_main=True)
    first, second = said(tmp_path)
    assert isinstance(first, Progress)
    assert isinstance(second, Progress)
    assert (first.epoch, first.samples, first.total_samples) == (2, 50, 60)
    assert (first.steps, first.step_s_sum, first.step_s_squares, first.sync_s_sum) == (2, 0.75, 0.3125, 0.125)
    assert (first.global_batch, first.local_batch, first.accumulation) == (16, 3, 3)
    assert (first.local_batches, first.max_global_batch) == ((8, 8), 64)
    assert (first.gradient_sqr, first.gradient_var) == (None, None)
    assert (first.progress, first.total_progress, first.dataset_samples) == (50.0, None, 20)
    assert second.steps == 0
    assert (second.gradient_sqr, second.gradient_var) == (pytest.approx(2.0), pytest.approx(32.0))


def test_progress_counts_reference_samples_and_says_where_it_ends(tmp_path: Path) -> None:
    reporter = Reporter(Mailbox(tmp_path, rank=0, generation=1))
    reporter.goal = TrainingGoal.of_epochs(3, 20, 16, by_progress=True)
    reporter.progress(replace(PLACE, excess=7.5), batching_of(2), is_main=True)
    fixed = Batching(replace(BOUNDS, most_global=None), rank=0, world_size=2)
    reporter.goal = replace(reporter.goal, by_progress=False)
    reporter.progress(PLACE, fixed, is_main=True)
    adaptive, constant = said(tmp_path)
    assert isinstance(adaptive, Progress)
    assert isinstance(constant, Progress)
    assert (adaptive.samples, adaptive.total_samples) == (50, 60)
    assert (adaptive.progress, adaptive.total_progress, adaptive.dataset_samples) == (42.5, 60.0, 20)
    assert (constant.progress, constant.total_progress, constant.dataset_samples) == (None, None, None)


def test_other_ranks_say_nothing_of_steps_and_begin_anew_with_each_report(tmp_path: Path) -> None:
    """Rank 0 of the next generation may be another: what it has measured before is not of that one."""
    reporter = Reporter(Mailbox(tmp_path, rank=0, generation=1))
    reporter.stepped(0.5, 0.5, usual=True)
    reporter.progress(PLACE, batching_of(2), is_main=False)
    assert said(tmp_path) == []
    reporter.progress(PLACE, batching_of(2), is_main=True)
    (progress,) = said(tmp_path)
    assert isinstance(progress, Progress)
    assert progress.steps == 0


def test_steps_of_other_members_are_no_part_of_the_next_report(tmp_path: Path) -> None:
    reporter = Reporter(Mailbox(tmp_path, rank=0, generation=1))
    reporter.progress(PLACE, batching_of(1), is_main=True)
    reporter.stepped(0.5, 0.5, usual=True)
    assert not reporter.due()
    reporter.forget()
    assert reporter.due(), "how fast the new members are is news"
    reporter.stepped(2.0, 0.5, usual=True)  # newcomers make their first pass
    reporter.stepped(0.25, 0.125, usual=True)
    reporter.progress(PLACE, batching_of(2), is_main=True)
    _, progress = said(tmp_path)
    assert isinstance(progress, Progress)
    assert (progress.steps, progress.step_s_sum, progress.sync_s_sum) == (1, 0.25, 0.125)


@pytest.mark.parametrize("exact", [True, False])
def test_an_epoch_is_audited_by_its_ledger(tmp_path: Path, exact: bool) -> None:
    ledger = Ledger.of_epoch(20) if exact else replace(Ledger.of_epoch(20), squares=5)
    place = replace(PLACE, position=Position(2, 20), ledger=ledger)
    reporter = Reporter(Mailbox(tmp_path, rank=0, generation=1))
    reporter.audit(place.next_epoch().audited, is_main=False)
    assert said(tmp_path) == [], "another rank tells of it"
    for _ in range(2):  # the second time after a change of members, when it was told already
        reporter.audit(place.next_epoch().audited, is_main=True)
    (audit,) = said(tmp_path)
    assert isinstance(audit, EpochClosed)
    assert (audit.epoch, audit.samples_seen, audit.dataset_samples, audit.exactly_once) == (2, 20, 20, exact)
    assert audit.exact_so_far == int(exact)


def test_the_state_counts_the_epochs_that_were_exact() -> None:
    """Whoever told of one may be lost with the news: the next one to tell knows of all."""
    place = Place(dataset_samples=20, seed=0)
    for exact in (True, False, True):
        ledger = Ledger.of_epoch(20) if exact else Ledger()
        place = replace(place, position=Position(place.position.epoch, 20), ledger=ledger).next_epoch()
    assert place.audited is not None
    assert (place.audited.exact_so_far, place.exact_epochs) == (2, 2)


def test_an_epoch_that_was_left_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Reporter(Mailbox(tmp_path, rank=0, generation=1)).audit(PLACE.next_epoch().audited, is_main=True)
    assert said(tmp_path) == []
    assert "after 10 of 20 samples" in capsys.readouterr().err


def test_a_change_of_the_batch_comes_with_its_learning_rate(tmp_path: Path) -> None:
    batching = batching_of(2)
    batching.follow(BatchPlan(global_batch=64))
    Reporter(Mailbox(tmp_path, rank=0, generation=1)).batch_changed(PLACE, batching)
    (changed,) = said(tmp_path)
    assert isinstance(changed, BatchChanged)
    assert (changed.samples, changed.global_batch, changed.lr_factor) == (50, 64, pytest.approx(2.0))


def test_progress_says_who_is_slow(tmp_path: Path) -> None:
    reporter, batching = Reporter(Mailbox(tmp_path, rank=0, generation=1)), batching_of(2)
    for slow_s in (0.25, 0.5):
        batching.observe(Agreement((Statement(compute_s=0.25), Statement(compute_s=slow_s))), (8, 8))
        reporter.progress(PLACE, batching, is_main=True)
    other = Batching(BOUNDS, rank=1, world_size=2)
    other.observe(Agreement((Statement(compute_s=0.25), Statement(compute_s=0.5))), (8, 8))
    assert other.step_rates.take() == (), "rank 0 speaks for all"
    assert [one.rank_sample_s for one in said(tmp_path) if isinstance(one, Progress)] == [
        (),
        (0.25 / 8, 0.5 / 8),
    ]


def test_progress_says_by_which_rule_the_learning_rate_follows_the_batch(tmp_path: Path) -> None:
    fixed = Batching(Bounds(global_batch=16, rule="sqrt"), rank=0, world_size=1)
    for batching in (batching_of(2), fixed):
        Reporter(Mailbox(tmp_path, rank=0, generation=1)).progress(PLACE, batching, is_main=True)
    assert [one.lr_rule for one in said(tmp_path) if isinstance(one, Progress)] == [BOUNDS.rule, None]


@pytest.mark.parametrize(("samples", "part"), [(0, (None, None)), (13, (2, 13)), (20, (None, None))])
def test_an_end_within_an_epoch_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], samples: int, part: tuple[int | None, int | None]
) -> None:
    reporter = Reporter(Mailbox(tmp_path, rank=0, generation=1))
    place = replace(PLACE, position=Position(2, samples))
    for is_main in (False, True):
        reporter.completed(place, is_main=is_main)
        assert ("13 of 20 samples" in capsys.readouterr().err) == (is_main and samples == 13)
    for message in said(tmp_path):
        assert isinstance(message, Completed)
        assert (message.samples, message.epoch, message.epoch_samples) == (40 + samples, *part)
