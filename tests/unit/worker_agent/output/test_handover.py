"""Parts of a node in handovers of the output folder: when they begin, when the folder is given, and when they end."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.contract.agents import Member, OrderCommand, RankSlot
from headway.contract.orders import generation_to_json
from headway.contract.output import OutputHandover
from tests.unit.worker_agent.runs.test_environment import command
from worker_agent.host.folders import RunFolder, StateFolder
from worker_agent.output import handover
from worker_agent.output.folder_calls import OutputRun
from worker_agent.runs import orders, records

GIVE = OutputHandover(role="give", before=1)
TAKE = OutputHandover(role="take", before=1)


@pytest.fixture
def run(tmp_path: Path) -> OutputRun:
    """A run with rank 0 of generation 1."""
    state = StateFolder(tmp_path / "state")
    state.make()
    made = records.new_run(state, command(generation=1, ranks=[RankSlot(rank=0, local_rank=0, slot=0)]))
    return OutputRun(made.command, made.folder)


def order(
    run: OutputRun, generation: int, part: OutputHandover | None, *, stays: bool = False
) -> OrderCommand:
    """An order, also for the ranks."""
    born = 1 if stays else generation
    ordered = OrderCommand(
        command_id=f"c{generation}",
        job_id="job",
        generation=generation,
        store_addr="10.0.0.1",
        store_port=20_001,
        members=[Member(rank=0, node_id="n", slot=0, born_generation=born, born_rank=0)],
        lost=False,
        output=part,
    )
    orders.store_newest(run.folder.job.order, orders.order_of(ordered))
    return ordered


def test_order_that_comes_again_begins_nothing(run: OutputRun) -> None:
    job = run.folder.job
    begun = handover.record(job, order(run, 3, TAKE))
    assert begun is not None
    assert handover.record(job, order(run, 3, TAKE)) is None
    assert handover.record(job, order(run, 3, None)) is None, "the repetition that names new losses"
    assert handover.record(job, order(run, 2, GIVE)) is None
    assert handover.current(job) == begun


def test_part_that_is_over_stays_over_unless_a_newer_order_has_come(run: OutputRun) -> None:
    job = run.folder.job
    first = handover.record(job, order(run, 2, TAKE))
    assert first is not None
    handover.end(job, first)
    assert handover.record(job, order(run, 2, TAKE)) is None
    second = handover.record(job, order(run, 3, TAKE))
    handover.end(job, first)
    assert handover.current(job) == second


def test_folder_is_given_once_the_leaving_ranks_have_ended(run: OutputRun) -> None:
    job = run.folder.job
    ordered = handover.record(job, order(run, 2, GIVE))
    assert handover.to_give(job, [run]) is None
    run.folder.rank_gone(0).touch()
    assert handover.to_give(job, [run]) == ordered


def test_folder_is_given_once_a_rank_0_that_stays_has_said_that_it_writes_no_more(run: OutputRun) -> None:
    job = run.folder.job
    run.folder.started.write_text("{}")
    part = GIVE.model_copy(update={"stays": True, "renumbered": True})
    ordered = handover.record(job, order(run, 2, part, stays=True))
    run.folder.output_given.write_text(generation_to_json(1))
    assert handover.to_give(job, [run]) is None
    run.folder.output_given.write_text(generation_to_json(2))
    assert handover.to_give(job, [run]) == ordered


@pytest.mark.parametrize(
    ("lost", "alive", "wait_s"), [(False, True, 120.0), (True, True, 3.0), (True, False, 0.0)]
)
def test_wait_for_the_last_save_is_short_where_it_may_never_come(
    lost: bool, alive: bool, wait_s: float
) -> None:
    part = TAKE.model_copy(update={"alive": alive})
    assert handover.Handover(generation=2, lost=lost, part=part).wait_s == wait_s


def test_damaged_record_of_a_handover_is_none(run: OutputRun) -> None:
    run.folder.job.handover.write_text("{")
    assert handover.current(run.folder.job) is None


def test_ranks_learn_the_generation_whose_rank_0_may_write(run: OutputRun) -> None:
    handover.allow_writes(run.folder, 3)
    assert run.folder.output_ready.read_text() == generation_to_json(3)
    gone = RunFolder(run.folder.path.parent / "9")
    handover.allow_writes(gone, 3)
    assert not gone.output_ready.exists()
