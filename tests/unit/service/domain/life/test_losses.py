"""Processes that end, hang or cannot be started, and nodes that are lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.contract.agents import RanksHung, StartFailed, StopCommand
from headway.contract.runtime import EXIT_NEVER_RETRY, EXIT_RETRY
from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.failures import RankExit
from service.domain.jobs.membership import Born
from service.domain.life.effects import StoreExit
from service.domain.life.life import Life
from service.domain.life.losses import node_ended, rank_ended, ranks_hung, start_failed
from service.domain.life.starts import vacate
from tests.unit.service.domain.life.cluster import Cluster
from tests.unit.service.domain.life.scenes import (
    FOUR,
    JOB,
    THREE,
    TWO,
    alter,
    commands_of,
    deliver,
    effects_of,
    event_of,
    exit_of,
    freed,
    history,
    job_of,
    kinds,
    life_of,
    ordered,
    ordered_members,
    orders,
    prepared,
    process_at,
    starting,
    stops,
    training,
    with_exits,
)
from tests.unit.service.domain.life.tables import BEGIN

DONE = exit_of(exit_code=0, completed=True)
ENTRY = {"sequence": 1, "job_id": JOB, "at": BEGIN}


def after_exit(life: Life, who: Born, exit_: RankExit) -> Life:
    """The life after the report of one exit."""
    return rank_ended(with_exits(life, {who: exit_}), who, replace(exit_, rank=who[1]))


def stopping(cluster: Cluster) -> Cluster:
    """The cluster after its job was asked to stop for others."""
    cluster.vacate(JOB)
    return cluster


def leaving(cluster: Cluster, *who: Born) -> Life:
    """The life of a job of which these processes have reported that they leave."""
    switch = job_of(cluster).switch
    assert switch is not None
    alter(cluster, switch=replace(switch, left=who))
    return life_of(cluster)


# Ends of processes


def test_a_killed_rank_is_survived_in_place() -> None:
    life = after_exit(life_of(training(THREE)), (1, 1), exit_of(signal=9))
    assert (life.job.state, life.job.reason) == (JobState.RECOVERING, Reason.RANK_LOST)
    assert ordered_members(life) == [(1, 0), (1, 2)]


def test_the_cause_of_a_loss_may_be_a_lack_of_memory() -> None:
    exit_ = exit_of(signal=9, log_tail=("torch.OutOfMemoryError: CUDA out of memory",))
    assert after_exit(life_of(training()), (1, 1), exit_).job.reason is Reason.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("exit_", "reason"),
    [
        (exit_of(exit_code=1), Reason.USER_ERROR),
        (exit_of(exit_code=EXIT_RETRY), Reason.RETRY_REQUESTED),
        (exit_of(exit_code=EXIT_NEVER_RETRY), Reason.USER_ERROR),
        (exit_of(exit_code=143), Reason.PREEMPTED),
    ],
)
def test_an_end_that_is_no_loss_stops_the_job(exit_: RankExit, reason: Reason) -> None:
    life = after_exit(life_of(training()), (1, 1), exit_)
    assert (life.job.state, life.job.reason, life.job.switch) == (JobState.RECOVERING, reason, None)
    assert stops(life) == [("n0", 1, 0, "kill")]


def test_a_killed_rank_stops_a_job_that_restarts() -> None:
    life = after_exit(life_of(training(TWO, "restart")), (1, 1), exit_of(signal=9))
    assert (life.job.state, life.job.reason) == (JobState.RECOVERING, Reason.RANK_LOST)
    assert stops(life) == [("n0", 1, 0, "kill")]


def test_a_rank_that_is_killed_while_the_job_starts_stops_it() -> None:
    life = after_exit(life_of(starting()), (1, 1), exit_of(signal=9))
    assert (life.job.state, life.job.switch) == (JobState.RECOVERING, None)


def test_a_completed_rank_stops_nothing() -> None:
    life = after_exit(life_of(training()), (1, 1), DONE)
    assert (life.job.state, life.effects) == (JobState.RUNNING, ())


@pytest.mark.parametrize("exit_code", [143, 1])
def test_ends_after_a_stop_are_expected(exit_code: int) -> None:
    """A plain script may lose its peers before its own stop arrives."""
    life = life_of(stopping(training(THREE, "restart")))
    after = after_exit(life, (1, 2), exit_of(exit_code=exit_code))
    assert (after.job.state, after.effects) == (JobState.RESIZING, ())


@pytest.mark.parametrize("exit_", [exit_of(signal=9), exit_of(exit_code=EXIT_RETRY)])
def test_a_loss_after_a_stop_is_a_failure(exit_: RankExit) -> None:
    for resize in ("live", "restart"):
        after = after_exit(life_of(stopping(training(THREE, resize))), (1, 2), exit_)
        assert (after.job.state, after.job.switch) == (JobState.RECOVERING, None)


def test_an_error_in_a_recovery_changes_nothing() -> None:
    cluster = training(THREE, "restart")
    cluster.tables.exits[JOB][1, 0] = exit_of(exit_code=1)
    cluster.store(after_exit(life_of(cluster), (1, 0), exit_of(exit_code=1)))
    after = after_exit(life_of(cluster), (1, 1), exit_of(exit_code=1))
    assert (after.job.reason, after.effects) == (Reason.USER_ERROR, ())


def test_ends_in_a_cancellation_change_nothing() -> None:
    cluster = training()
    alter(cluster, state=JobState.CANCELLING)
    assert after_exit(life_of(cluster), (1, 0), exit_of(signal=9)).effects == ()


def test_a_newcomer_that_fails_before_the_order_ends_the_change() -> None:
    life = after_exit(life_of(prepared()), (2, 2), exit_of(exit_code=1))
    assert (life.job.state, life.job.reason, life.job.switch) == (JobState.RUNNING, Reason.USER_ERROR, None)
    assert (life.job.growth_failures, kinds(life)) == (1, ["abandon"])
    assert stops(life) == [("n1", 2, 2, "kill")]


def test_a_newcomer_that_is_killed_after_the_order_is_a_loss() -> None:
    life = after_exit(life_of(ordered()), (2, 2), exit_of(signal=9))
    assert ordered_members(life) == [(1, 0), (1, 1)]
    assert life.job.growth_failures == 0


def test_an_error_in_a_prepared_change_stops_newcomers_too() -> None:
    life = after_exit(life_of(prepared()), (1, 0), exit_of(exit_code=1))
    assert (life.job.state, life.job.switching) == (JobState.RECOVERING, None)
    assert stops(life) == [("n0", 1, 0, "kill"), ("n1", 2, 0, "kill")]


@pytest.mark.parametrize(
    "exit_", [exit_of(exit_code=0), exit_of(exit_code=143), exit_of(signal=9), exit_of(exit_code=1)]
)
def test_a_rank_that_left_may_end_in_any_way(exit_: RankExit) -> None:
    life = leaving(prepared({"n0": (0,)}), (1, 1))
    after = after_exit(life, (1, 1), exit_)
    assert (after.job.state, after.effects) == (JobState.RESIZING, ())


def test_a_rank_that_is_to_leave_but_is_killed_before_is_lost() -> None:
    life = after_exit(life_of(prepared({"n0": (0,)})), (1, 1), exit_of(signal=9))
    assert (life.job.state, ordered_members(life)) == (JobState.RECOVERING, [(1, 0)])


def test_a_lost_process_that_is_reported_late_is_no_second_loss() -> None:
    cluster = training(THREE)
    cluster.lose("n1")
    life = after_exit(life_of(cluster), (1, 2), exit_of(signal=9))
    assert (life.job.newest_generation, life.effects) == (2, ())


def test_completed_ranks_dismiss_newcomers() -> None:
    one = with_exits(life_of(prepared()), {(1, 0): DONE})
    assert rank_ended(one, (1, 0), DONE).effects == ()
    both = after_exit(one, (1, 1), DONE)
    assert (both.job.state, both.job.switch) == (JobState.RUNNING, None)
    assert stops(both) == [("n1", 2, 2, "kill")]
    late = after_exit(with_exits(life_of(ordered()), {(1, 0): DONE}), (1, 1), DONE)
    assert late.job.state is JobState.RESIZING
    assert stops(late) == [("n1", 2, 2, "kill")]


def test_a_job_that_completes_during_a_change_succeeds() -> None:
    for cluster in (prepared(FOUR), ordered(FOUR)):
        cluster.complete(JOB)
        cluster.settle()
        assert job_of(cluster).state is JobState.SUCCEEDED
        assert (cluster.processes, cluster.tables.grants) == ({}, {})


def test_a_stranger_cannot_end() -> None:
    with pytest.raises(AssertionError):
        after_exit(life_of(training()), (1, 7), exit_of(signal=9))


# Starts that fail


@pytest.mark.parametrize(("retryable", "code"), [(True, EXIT_RETRY), (False, EXIT_NEVER_RETRY)])
def test_a_start_that_fails_counts_as_the_end_of_its_first_rank(code: int, *, retryable: bool) -> None:
    life = life_of(starting(THREE))
    entry = StartFailed(**ENTRY, generation=1, message="no such image", retryable=retryable)
    after = start_failed(life, life.loaded_footprint.hosts["n1"], entry)
    assert (after.job.state, after.job.reason) == (JobState.RECOVERING, Reason.START_FAILED)
    (stored,) = effects_of(after, StoreExit)
    assert (stored.generation, stored.exit.rank, stored.exit.exit_code) == (1, 2, code)
    assert stored.exit.start_error is not None
    assert "node-n1" in stored.exit.start_error
    assert stops(after) == [("n0", 1, 0, "kill"), ("n1", 1, 0, "kill")]


def test_newcomers_that_cannot_start_end_the_change() -> None:
    life = life_of(prepared())
    entry = StartFailed(**ENTRY, generation=2, message="no such image", retryable=True)
    after = start_failed(life, life.loaded_footprint.hosts["n1"], entry)
    assert (after.job.state, after.job.reason) == (JobState.RUNNING, Reason.START_FAILED)
    assert after.job.growth_failures == 1


@pytest.mark.parametrize(("node", "generation"), [("n2", 1), ("n0", 7)])
def test_a_failed_start_of_others_is_ignored(node: str, generation: int) -> None:
    life = life_of(starting())
    entry = StartFailed(**ENTRY, generation=generation, message="no such image", retryable=True)
    assert start_failed(life, life.loaded_footprint.hosts[node], entry) is life


# Nodes that are lost


def after_node(cluster: Cluster, node: str) -> Life:
    return node_ended(life_of(cluster), node, f"node {node} has not reported")


def test_the_members_on_a_lost_node_are_lost() -> None:
    life = after_node(training(THREE), "n1")
    assert (life.job.state, life.job.reason) == (JobState.RECOVERING, Reason.NODE_LOST)
    assert ordered_members(life) == [(1, 0), (1, 1)]
    assert set(orders(life)) == {"n0"}
    (stored,) = effects_of(life, StoreExit)
    assert (stored.exit.rank, stored.exit.exit_code, stored.exit.signal) == (2, None, None)
    assert life.loaded_footprint.held == {1: TWO}
    assert freed(life) == [1]


def test_a_job_that_restarts_stops_with_a_node() -> None:
    life = after_node(training(THREE, "restart"), "n1")
    assert (life.job.state, life.job.switch) == (JobState.RECOVERING, None)
    assert stops(life) == [("n0", 1, 0, "kill")]


def test_a_node_with_ranks_that_have_finished_costs_nothing() -> None:
    life = with_exits(life_of(training(THREE)), {(1, 2): DONE})
    after = node_ended(life, "n1", "node n1 has not reported")
    assert (after.job.state, kinds(after)) == (JobState.RUNNING, [])
    assert after.loaded_footprint.exits == life.loaded_footprint.exits
    assert freed(after) == [1]


def test_a_node_of_others_costs_nothing() -> None:
    life = life_of(training())
    assert node_ended(life, "n2", "node n2 has not reported") is life


def test_a_node_with_newcomers_only_ends_the_change_without_blame() -> None:
    life = after_node(prepared(), "n1")
    assert (life.job.state, life.job.reason) == (JobState.RUNNING, Reason.NODE_LOST)
    assert (life.job.switch, life.job.growth_failures) == (None, 0)
    assert (life.loaded_footprint.held, freed(life)) == ({1: TWO}, [2])


def test_a_node_with_newcomers_and_members_is_a_loss() -> None:
    life = after_node(prepared(FOUR, {"n0": (0,), "n1": (0,)}), "n1")
    assert ordered_members(life) == [(1, 0)]
    assert stops(life) == [("n0", 2, 2, "kill")]
    assert freed(life) == [1, 2]


def test_a_node_with_ordered_newcomers_is_a_loss() -> None:
    assert ordered_members(after_node(ordered(), "n1")) == [(1, 0), (1, 1)]


def test_a_node_from_which_the_ranks_left_costs_nothing() -> None:
    cluster = prepared({"n0": (0, 1)}, THREE)
    assert after_node(cluster, "n1").job.state is JobState.RECOVERING
    leaving(cluster, (1, 2))
    life = after_node(cluster, "n1")
    assert (life.job.state, life.loaded_footprint.held) == (JobState.RESIZING, {1: TWO})
    assert kinds(life) == []


def test_a_job_cannot_move_to_a_lost_node() -> None:
    """The slots that it was granted there stay with the job until it goes on, because nothing runs there."""
    cluster = training(TWO, "restart")
    cluster.change(JOB, THREE)
    life = after_node(cluster, "n1")
    assert (life.job.state, life.job.reason, life.job.target) == (JobState.RECOVERING, Reason.NODE_LOST, None)
    assert life.loaded_footprint.held == {1: TWO, 2: {"n1": (0,)}}
    cluster.lose("n1")
    cluster.settle()
    assert (job_of(cluster).state, cluster.tables.grants) == (JobState.RECOVERING, {})


def test_a_lost_node_of_a_job_that_is_cancelled_frees_its_slots() -> None:
    cluster = training(THREE)
    alter(cluster, state=JobState.CANCELLING)
    life = after_node(cluster, "n1")
    assert (life.job.state, life.loaded_footprint.held, kinds(life)) == (JobState.CANCELLING, {1: TWO}, [])


# Hung ranks


def hung(life: Life, node: str = "n0", generation: int = 1, **fields: object) -> Life:
    entry = RanksHung(**{**ENTRY, "generation": generation, "silent_s": 700.0, "usual_s": 2.0, **fields})
    return ranks_hung(life, life.loaded_footprint.hosts[node], entry)


def test_a_job_whose_ranks_hang_restarts_with_their_stacks() -> None:
    life = hung(life_of(training(THREE)), stacks=["x" * 20_000, "one\ntwo"])
    assert (life.job.state, life.job.reason, life.job.switch) == (JobState.RECOVERING, Reason.HUNG, None)
    data = event_of(life, "hung").data
    assert (data["node"], data["silent_s"], data["usual_s"]) == ("node-n0", 700.0, 2.0)
    assert [len(one) for one in data["stacks"]] == [8_192, 7]
    assert kinds(life) == ["hung", "fail_rank"]
    assert stops(life) == [("n0", 1, 0, "kill"), ("n1", 1, 0, "kill")]
    assert all(stop.dump_stacks for stop in commands_of(life, StopCommand).values())


def test_an_event_shows_the_first_lines_of_four_ranks() -> None:
    stacks = ["\n".join(f"{rank}.{line}" for line in range(20)) for rank in range(6)]
    text = event_of(hung(life_of(training()), stacks=stacks, usual_s=0.0, silent_s=7.5), "hung").message
    assert len(text.splitlines()) == 1 + 4 * 8
    assert "7.5 s" in text


def test_ranks_hang_in_a_change_only_until_its_order() -> None:
    early = hung(life_of(prepared()))
    assert (early.job.state, early.job.switching) == (JobState.RECOVERING, None)
    assert stops(early) == [("n0", 1, 0, "kill"), ("n1", 2, 0, "kill")]
    late = life_of(ordered())
    assert hung(late) is late, "the order has a deadline"


def test_ranks_that_do_not_train_cannot_hang() -> None:
    vacated = training()
    vacated.store(vacate(life_of(vacated), None, reason=Reason.PREEMPTED, message="others"))
    for cluster, node, generation in (
        (starting(), "n0", 1),
        (vacated, "n0", 1),
        (training(), "n1", 1),
        (training(), "n0", 2),
        (prepared(), "n1", 2),
    ):
        life = life_of(cluster)
        assert hung(life, node, generation) is life


def test_a_plain_script_that_loses_its_peers_after_a_stop_moves() -> None:
    cluster = training({"n0": (0,), "n1": (0,)}, "restart")
    cluster.change(JOB, {"n2": (0,)})
    cluster.take_command("n0")
    cluster.end(process_at(cluster, "n1", 0), exit_code=1)
    for node in ("n1", "n0"):
        deliver(cluster, node, commands=False)
    deliver(cluster, "n1")
    cluster.settle()
    assert (job_of(cluster).state, job_of(cluster).allocation) == (JobState.RUNNING, {"n2": (0,)})
    assert "fail_rank" not in history(cluster)
