"""Commands: their recipients, and what each recipient is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.contract import runtime
from headway.contract.agents import BatchOrder, RankSlot
from headway.contract.output import OutputHandover
from headway.tracing import SpanRef
from service.domain.jobs.job import Allocation, Switch
from service.domain.jobs.membership import Store, next_members
from service.domain.life.commands import choose_ports, send_order, stop_generation, stop_start
from service.domain.life.life import Life
from tests.unit.service.domain.life.scenes import (
    THREE,
    TWO,
    alter,
    effects_of,
    job_of,
    life_of,
    ordered_members,
    orders,
    prepared,
    run_at,
    runs,
    starting,
    stops,
    training,
    waiting,
)
from tests.unit.service.domain.life.tables import BEGIN, PORTS

ADAPTIVE = {"global": 32, "policy": "adaptive", "max_global": 64}
ROOT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FIRST_PORT = 20_000


def with_ports(life: Life, used: dict[str, list[int]]) -> Life:
    return replace(life, footprint=replace(life.loaded_footprint, ports_in_use=used))


def test_a_port_that_is_taken_is_passed_over() -> None:
    life = life_of(waiting())
    ports = choose_ports(life, ["n0", "n1"], 1)
    first = ports["n0"]
    assert ports == {"n0": first, "n1": first}
    following = FIRST_PORT + (first + 1 - FIRST_PORT) % PORTS
    assert choose_ports(with_ports(life, {"n0": [first]}), ["n0", "n1"], 1) == {"n0": following, "n1": first}


def test_the_next_start_prefers_another_port() -> None:
    life = life_of(waiting())
    assert choose_ports(life, ["n0"], 1) != choose_ports(life, ["n0"], 2)


def test_without_a_free_port_the_agent_has_to_report_it() -> None:
    life = life_of(waiting())
    full = with_ports(life, {"n0": list(range(FIRST_PORT, FIRST_PORT + PORTS))})
    assert choose_ports(full, ["n0"], 1) == choose_ports(life, ["n0"], 1)


def test_each_node_starts_its_ranks_and_meets_at_the_first() -> None:
    cluster = starting(THREE)
    first, second = (run_at(cluster, node) for node in ("n0", "n1"))
    assert first.ranks == [RankSlot(rank=0, local_rank=0, slot=0), RankSlot(rank=1, local_rank=1, slot=1)]
    assert second.ranks == [RankSlot(rank=2, local_rank=0, slot=0)]
    assert [(one.node_rank, one.node_count, one.world_size) for one in (first, second)] == [
        (0, 2, 3),
        (1, 2, 3),
    ]
    port = life_of(cluster).loaded_footprint.stores["n0", 1]
    assert {(one.master_addr, one.master_port, one.hosts_store) for one in (first, second)} == {
        ("n0.example", port, True)
    }
    assert second.store_port == life_of(cluster).loaded_footprint.stores["n1", 1]
    assert (first.generation, first.attempt, first.restart_count) == (1, 1, 0)
    assert (first.live, first.joins) == (True, False)
    assert first.checkpoint_uri == "file:///checkpoints/a"
    assert first.command_id == "a.1.run.n0"


def test_ranks_that_restart_share_the_store_of_the_first_node() -> None:
    cluster = starting(THREE, "restart")
    first, second = (run_at(cluster, node) for node in ("n0", "n1"))
    assert (first.hosts_store, first.store_port) == (True, first.master_port)
    assert (second.hosts_store, second.store_port) == (False, 0)
    assert (first.live, first.joins) == (False, False)


def test_newcomers_are_told_that_they_join() -> None:
    cluster = prepared(THREE)
    command = run_at(cluster, "n1")
    assert command.ranks == [RankSlot(rank=2, local_rank=0, slot=0)]
    assert (command.generation, command.joins, command.world_size) == (2, True, 3)
    assert (command.node_rank, command.node_count) == (1, 2)
    assert command.master_addr == "n0.example", "the store of a member that runs"
    assert command.restart_count == 0, "a newcomer is no restart"
    assert (command.hosts_store, command.store_port) == (
        True,
        life_of(cluster).loaded_footprint.stores["n1", 2],
    )


@pytest.mark.parametrize(
    ("hung_after", "expected"),
    [("never", (None, 0.0, False)), ("auto", (600.0, 50.0, True)), (30, (30.0, 5.0, False))],
)
def test_ranks_are_told_when_they_count_as_hung(
    hung_after: object, expected: tuple[float | None, float, bool]
) -> None:
    run = run_at(starting(hung_after=hung_after), "n0")
    assert (run.hung_after_s, run.hung_factor, run.hung_when_still) == expected


@pytest.mark.parametrize(
    ("present", "resize", "expected"),
    [
        (None, "live", (None, 64, "auto")),
        (32, "live", (None, 64, "auto")),
        (48, "live", (48, 64, "auto")),
        (48, "restart", (None, None, "none")),
    ],
)
def test_only_an_adaptive_job_starts_at_the_batch_that_it_had_reached(
    present: int | None, resize: str, expected: tuple[int | None, int | None, str]
) -> None:
    cluster = waiting(resize, batch=ADAPTIVE)
    alter(cluster, progress=job_of(cluster).progress.model_copy(update={"global_batch": present}))
    cluster.start("a", TWO)
    run = run_at(cluster, "n0")
    rule = job_of(cluster).spec.batch.lr_rule if expected[2] == "auto" else "none"
    assert (run.start_global_batch, run.max_global_batch, run.lr_rule) == (*expected[:2], rule)
    assert run.global_batch == 32


def test_ranks_get_the_settings_of_the_job_file() -> None:
    cluster = starting(
        env={"SEED": "7"},
        trackers=["tensorboard"],
        secrets={"HF_TOKEN": "hf-token"},
        checkpoint={"every": 20, "keep": 2, "grace_s": 9},
        output={"dir": "out", "every": 30},
        exit_within=90,
        elastic={"min": 1, "max": 2, "partial_backprop": {"min_depth": 0.25}, "redundancy": "neighbour"},
    )
    run = run_at(cluster, "n0")
    project = job_of(cluster).spec.project
    assert run.env == {
        "SEED": "7",
        runtime.ENV_PROJECT: project,
        runtime.ENV_EXIT_WITHIN_S: "90",
        runtime.ENV_TRACKERS: "tensorboard",
        runtime.ENV_MIN_DEPTH: "0.25",
        runtime.ENV_REDUNDANCY: "neighbour",
    }
    assert (run.secrets, run.checkpoint_every_s, run.checkpoint_keep, run.grace_s) == (
        ["HF_TOKEN"],
        20.0,
        2,
        9.0,
    )
    assert (run.output.dir, run.output.every_s) == ("out", 30.0)


def test_by_default_ranks_choose_their_own_checkpoints_and_trackers() -> None:
    run = run_at(starting(), "n0")
    assert run.checkpoint_every_s is None
    assert not {runtime.ENV_TRACKERS, runtime.ENV_REDUNDANCY} & run.env.keys()


@pytest.mark.parametrize(
    ("spec", "sent"),
    [
        ({}, (None, None)),
        ({"audit": "none"}, ("none", None)),
        ({"elastic": {"max": 2, "mix": ["cpu", "t4"]}}, ("none", "1")),
        ({"audit": "none", "elastic": {"max": 2, "mix": ["cpu", "t4"]}}, ("none", None)),
    ],
)
def test_ranks_compare_their_replicas_unless_that_is_off_and_up_to_rounding_on_two_kinds(
    spec: dict[str, object], sent: tuple[str | None, str | None]
) -> None:
    run = run_at(starting(**spec), "n0")  # type: ignore[arg-type]
    assert (run.env.get(runtime.ENV_AUDIT), run.env.get(runtime.ENV_AUDIT_NEAR)) == sent


def test_a_command_continues_the_trace_of_its_job() -> None:
    cluster = waiting()
    alter(cluster, traceparent=ROOT)
    cluster.start("a", TWO)
    run = run_at(cluster, "n0")
    root = SpanRef.parse(ROOT)
    assert root is not None
    assert run.traceparent == str(root.child("command", "a.1.run.n0"))
    assert run_at(starting(), "n0").traceparent is None


def test_an_order_reaches_every_node_with_processes_of_the_job() -> None:
    """Also one whose members leave, but none that only holds slots for a later start."""
    cluster = training({"n0": (0,), "n1": (0,)})
    cluster.tables.grant("a", {"n2": (0,)})
    life = life_of(cluster)
    members = tuple(one for one in life.crew.running if one.node_id == "n1")
    after = send_order(life, 1, members, Store("n1", 1, 20_007), lost=True)
    assert set(orders(after)) == {"n0", "n1"}
    order = orders(after)["n0"]
    assert (order.store_addr, order.store_port, order.lost) == ("n1.example", 20_007, True)
    assert (order.command_id, order.generation, order.batch) == ("a.1.order.n0", 1, None)
    assert ordered_members(after) == [(1, 1)]


def handovers(begin: Allocation, slots: Allocation) -> dict[str, OutputHandover | None]:
    """The parts of nodes in the order that moves a job from the slots of `begin` to others."""
    cluster = training(begin)
    life = life_of(cluster)
    members = next_members(life.crew.running, slots, 2)
    after = send_order(life, 2, members, Store("n0", 1, 20_007), lost=False)
    return {node: order.output for node, order in orders(after).items()}


def test_order_that_moves_rank_0_makes_its_node_give_the_output_folder_and_the_next_take_it() -> None:
    part = OutputHandover(role="take", before=1)
    assert handovers({"n0": (0,)}, {"n1": (0,)}) == {
        "n0": part.model_copy(update={"role": "give"}),
        "n1": part,
    }


def test_order_that_leaves_rank_0_on_its_node_hands_no_output_over() -> None:
    assert handovers({"n0": (0,)}, {"n0": (0,), "n1": (0,)}) == {"n0": None, "n1": None}
    assert handovers(THREE, {"n0": (1,), "n1": (0,)}) == {"n0": None, "n1": None}


def test_handover_of_a_lost_node_says_that_nothing_is_to_be_expected() -> None:
    cluster = training({"n0": (0,), "n1": (0,)})
    life = life_of(cluster)
    held = {generation: {"n1"} for generation in life.loaded_footprint.held}
    life = replace(life, footprint=replace(life.loaded_footprint, held=held))
    members = next_members(life.crew.running, {"n1": (0,)}, 2)
    after = send_order(life, 2, members, Store("n1", 1, 20_007), lost=True)
    assert orders(after)["n1"].output == OutputHandover(role="take", before=1, alive=False)


def test_handover_names_a_rank_0_that_trains_on_under_another_number() -> None:
    cluster = training({"n0": (0,), "n1": (0,)})
    life = life_of(cluster)
    first, second = life.crew.running
    members = (second.model_copy(update={"rank": 0}), first.model_copy(update={"rank": 1}))
    after = send_order(life, 2, members, Store("n1", 1, 20_007), lost=False)
    assert orders(after)["n1"].output == OutputHandover(role="take", before=1, stays=True, renumbered=True)


@pytest.mark.parametrize(
    ("asked", "present", "expected"),
    [(64, 32, BatchOrder(global_batch=64)), (None, 48, BatchOrder(global_batch=48)), (None, None, None)],
)
def test_an_order_names_the_batch_of_an_adaptive_job(
    asked: int | None, present: int | None, expected: BatchOrder | None
) -> None:
    cluster = training(batch=ADAPTIVE)
    progress = job_of(cluster).progress.model_copy(update={"global_batch": present})
    switch = Switch(generation=1, began_at=BEGIN, deadline=BEGIN, global_batch=asked)
    alter(cluster, progress=progress, switch=switch)
    life = life_of(cluster)
    after = send_order(life, 1, life.crew.running, Store("n0", 1, 20_007), lost=False)
    assert orders(after)["n0"].batch == expected
    alter(cluster, switch=None)
    life = life_of(cluster)
    after = send_order(life, 1, life.crew.running, Store("n0", 1, 20_007), lost=False)
    assert orders(after)["n0"].batch == (None if present is None else BatchOrder(global_batch=present))


@pytest.mark.parametrize("mode", ["checkpoint", "kill"])
def test_a_stop_reaches_every_start_and_the_oldest_covers_what_is_older(mode: str) -> None:
    cluster = prepared({"n0": (0, 1), "n1": (0, 1)}, {"n0": (0,), "n1": (0,)})
    after = stop_generation(life_of(cluster), mode)
    assert stops(after) == [("n0", 1, 0, mode), ("n0", 2, 2, mode), ("n1", 1, 0, mode), ("n1", 2, 2, mode)]


def test_a_stop_spares_slots_that_wait_for_the_next_start() -> None:
    cluster = training()
    cluster.tables.grant("a", {"n1": (0,)})
    after = stop_generation(life_of(cluster), "kill", dump_stacks=True)
    assert stops(after) == [("n0", 1, 0, "kill")]
    ((_, stop),) = effects_of(after, type(after.effects[-1]))[0].commands
    assert (stop.dump_stacks, stop.grace_s, stop.command_id) == (True, 60.0, "a.1.stop-kill.n0")


def test_the_stop_of_one_start_spares_all_others() -> None:
    cluster = prepared({"n0": (0, 1), "n1": (0,)}, {"n0": (0,)})
    assert stops(stop_start(life_of(cluster), 2)) == [("n0", 2, 2, "kill"), ("n1", 2, 2, "kill")]
    assert stops(stop_start(life_of(cluster), 3)) == []


def test_a_command_about_nothing_is_sent_to_nobody() -> None:
    assert runs(stop_generation(life_of(waiting()), "kill")) == {}
    assert stops(stop_generation(life_of(waiting()), "kill")) == []
