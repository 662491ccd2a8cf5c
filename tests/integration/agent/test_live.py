"""Runs of one live job beside one another: they grow, shrink, lose ranks, and are given up, with real processes."""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

import pytest

from headway.contract.agents import (
    Holding,
    Member,
    OrderCommand,
    RankExited,
    RankMessage,
    RanksStarted,
    Released,
)
from tests.integration.agent.looking import alive
from tests.integration.agent.stub import StubService

MEMBER = """
import json, os, signal, subprocess, sys, threading
born = int(os.environ["HEADWAY_GENERATION"]), int(os.environ["RANK"])
control, generation, rank = os.environ["HEADWAY_CONTROL"], *born
lines = open(f"{control}/rank-{rank}.jsonl", "a")
def say(kind, **fields):
    message = {"type": kind, "rank": rank, "generation": generation, "at_s": 1.0, "samples": 1, **fields}
    lines.write(json.dumps(message) + "\\n")
    lines.flush()
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
print("env", os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"], os.environ.get("HEADWAY_JOINS"), flush=True)
say("ready", ready_s=0.5) if "HEADWAY_JOINS" in os.environ else say("first_step", live=True)
print("pids", os.getpid(), helper.pid, flush=True)
seen = 0
while not stopped:
    threading.Event().wait(0.01)
    try:
        with open(f"{control}/order.json") as file:
            order = json.load(file)
    except FileNotFoundError:
        continue
    if order["generation"] <= seen:
        continue
    seen = order["generation"]
    me = order["members"].get(f"{born[0]}.{born[1]}")
    if me is None:
        say("left", joined=seen)
        os.abort()  # as an interpreter may, while it tidies up
    rank, generation = me, seen
    say("switched", world_size=order["world_size"], pause_s=0.1, lost_steps=0, sync_bytes=0)
    print("order", seen, "rank", rank, flush=True)
say("completed")
sys.exit(143)
"""


class LiveJob:
    """A live job of a stub service."""

    def __init__(self, stub: StubService, name: str) -> None:
        stub.wait_for(lambda: stub.reports)
        self.stub = stub
        self.name = name
        self._port = stub.joins[-1].first_port + 10
        self._bundle = stub.add_bundle({"train.py": MEMBER})

    def start(self, generation: int, slots: dict[int, int], **fields: Any) -> dict[int, list[int]]:
        """Start a run whose ranks get these slots. What `pids` says of each of them."""
        fields = {"live": True, "bundle": self._bundle, "store_port": self.store_port(generation), **fields}
        self.stub.run(self.name, "python train.py", generation=generation, slots=slots, **fields)
        return {rank: self.pids(generation, rank) for rank in slots}

    def order(self, generation: int, *born: tuple[int, int], lost: bool = False) -> OrderCommand:
        """Push an order: its members by the generation and rank of their start, in the order of their ranks."""
        members = [
            Member(rank=rank, node_id="node-1", slot=0, born_generation=start, born_rank=born_rank)
            for rank, (start, born_rank) in enumerate(born)
        ]
        command = OrderCommand(
            command_id=self.stub.command_id(),
            job_id=self.name,
            generation=generation,
            store_addr="127.0.0.1",
            store_port=self.store_port(1),
            members=members,
            lost=lost,
        )
        self.stub.push(command)
        return command

    def store_port(self, generation: int) -> int:
        """A port for the store of this generation's processes, of its own."""
        return self._port + generation

    def pids(self, generation: int, rank: int) -> list[int]:
        """The process of a rank and a helper of it in a session of its own, once they run."""
        log = self.stub.wait_log(self.name, "pids", rank, generation)
        line = next(line for line in log.splitlines() if line.startswith("pids"))
        return [int(word) for word in line.split()[1:]]

    def switched(self, generation: int) -> list[tuple[int, int, int]]:
        """Return the members that have switched to the generation, as (born generation, born rank, rank now)."""
        return sorted(
            (one.generation, one.rank, one.message["rank"])
            for one in self.stub.of(self.name, RankMessage)
            if one.message["type"] == "switched" and one.message["generation"] == generation
        )

    def wait_switched(self, generation: int, *members: tuple[int, int, int]) -> None:
        """Wait until exactly these have."""
        self.stub.wait_for(lambda: self.switched(generation) == sorted(members))

    def slots_released(self, generation: int) -> list[int]:
        """Slots that were released one by one, in the order of the news."""
        entries = self.stub.of(self.name, Released, generation)
        return [slot for entry in entries if entry.slots is not None for slot in entry.slots]

    def wholly_released(self, generation: int) -> bool:
        """Return whether everything up to this generation is released."""
        return any(one.slots is None for one in self.stub.of(self.name, Released, generation))

    def wait_released(self, generation: int) -> None:
        """Wait until it is."""
        self.stub.wait_for(lambda: self.wholly_released(generation))

    def exits(self, generation: int) -> dict[int, RankExited]:
        """How ranks ended so far, each reported once."""
        entries = self.stub.of(self.name, RankExited, generation)
        assert len({entry.rank for entry in entries}) == len(entries)
        return {entry.rank: entry for entry in entries}

    def end(self, generation: int) -> None:
        """Stop what is left of the job."""
        self.stub.send_stop(self.name, generation=generation, mode="kill")
        self.wait_released(generation)


def _alive(*pids: list[int]) -> list[bool]:
    return [alive(pid) for ranks in pids for pid in ranks]


@pytest.mark.slow
def test_newcomers_start_beside_the_run_and_all_follow_one_order(shared: StubService) -> None:
    job = LiveJob(shared, "grows")
    old = job.start(1, {0: 0, 1: 1})
    new = job.start(3, {2: 2}, joins=True, world_size=3, master_port=job.store_port(1))
    assert all(_alive(*old.values(), *new.values()))
    assert f"env 3 {job.store_port(1)} 1" in shared.log("grows", 2, 3)
    assert f"env 2 {shared.joins[-1].first_port} None" in shared.log("grows", 0, 1)
    for generation in (1, 3):
        with socket.create_connection(("127.0.0.1", job.store_port(generation)), 5):
            pass  # each cohort has a store

    job.order(3, (1, 0), (1, 1), (3, 2))
    job.wait_switched(3, (1, 0, 0), (1, 1, 1), (3, 2, 2))
    assert [message["type"] for message in shared.messages("grows")].count("ready") == 1
    job.end(3)
    assert not any(_alive(*old.values(), *new.values()))
    assert len(shared.of("grows", RanksStarted)) == 2


@pytest.mark.parametrize(("name", "env"), [("shrinks", {}), ("shrinks-spawned", {"PYTHONHASHSEED": "0"})])
def test_a_leaver_frees_its_slot_while_its_peers_go_on(
    shared: StubService, name: str, env: dict[str, str]
) -> None:
    job = LiveJob(shared, name)
    pids = job.start(1, {0: 0, 1: 1, 2: 2}, env=env)
    assert shared.started(name).how == ("spawn" if env else "zygote")
    job.order(2, (1, 0), (1, 2))
    shared.wait_for(lambda: job.slots_released(1) == [1])
    assert not any(_alive(pids[1])), "neither the rank nor what it started in a session of its own"
    assert all(_alive(pids[0], pids[2]))
    job.wait_switched(2, (1, 0, 0), (1, 2, 1))
    end = job.exits(1)[1]
    assert (end.signal, end.completed, end.log_tail) == (signal.SIGABRT, False, [])
    left = next(one for one in shared.of(name, RankMessage) if one.message["type"] == "left")
    assert left.sequence < end.sequence, "its word comes before its end"

    shared.run(f"{name}-next", "true", first_slot=1, hosts_store=False)
    assert shared.exits(f"{name}-next")[0].exit_code == 0, "the slot takes another job at once"
    assert Holding(job_id=name, generation=1) in shared.reports[-1].holding
    job.end(2)
    assert job.slots_released(1).count(1) == 1


def test_a_whole_move_leaves_nothing_of_the_older_run(shared: StubService) -> None:
    job = LiveJob(shared, "moves")
    old, new = job.start(1, {0: 0, 1: 1}), job.start(2, {0: 2, 1: 3}, joins=True)
    job.order(2, (2, 0), (2, 1))
    job.wait_released(1)
    job.wait_switched(2, (2, 0, 0), (2, 1, 1))
    assert not any(_alive(*old.values()))
    assert all(_alive(*new.values()))
    shared.wait_for(lambda: shared.reports[-1].holding == [Holding(job_id="moves", generation=2)])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", job.store_port(1)), 5).close()
    job.end(2)


def test_newcomers_that_cannot_start_leave_the_others_alone(shared: StubService) -> None:
    job = LiveJob(shared, "cannot")
    old = job.start(1, {0: 0})
    port = job.store_port(2)
    with socket.create_server(("127.0.0.1", port)):
        shared.run("cannot", "true", generation=2, slots={1: 1}, live=True, joins=True, store_port=port)
        failed = shared.start_failed("cannot", 2)
        shared.wait_for(lambda: job.slots_released(2) == [1])
    assert failed.retryable
    assert str(port) in failed.message
    assert all(_alive(*old.values()))
    job.end(2)


def test_a_lost_rank_does_not_end_its_peers(shared: StubService) -> None:
    job = LiveJob(shared, "loses")
    pids = job.start(1, {0: 0, 1: 1, 2: 2})
    os.kill(pids[0][0], signal.SIGKILL)
    shared.wait_for(lambda: job.slots_released(1) == [0])
    end = job.exits(1)[0]
    assert (end.signal, end.stopped_by_agent) == (signal.SIGKILL, False)
    assert not any(_alive(pids[0]))
    job.order(2, (1, 1), (1, 2), lost=True)
    job.wait_switched(2, (1, 1, 0), (1, 2, 1))
    assert all(_alive(pids[1], pids[2]))

    shared.send_stop("loses", generation=2)
    job.wait_released(2)
    assert {rank: end.exit_code for rank, end in job.exits(1).items()} == {0: None, 1: 143, 2: 143}
    completed = {rank: end.completed for rank, end in job.exits(1).items()}
    assert completed == {0: False, 1: True, 2: True}, "by the rank of the start, whatever it is by now"


def test_giving_newcomers_up_leaves_the_others_alone(shared: StubService) -> None:
    job = LiveJob(shared, "gives-up")
    old = job.start(1, {0: 0, 1: 1})
    new = job.start(3, {2: 2, 3: 3}, joins=True)
    stop = shared.send_stop("gives-up", generation=3, oldest=3, mode="kill")
    shared.wait_for(lambda: set(job.slots_released(3)) == {2, 3})
    assert {end.signal for end in job.exits(3).values()} == {signal.SIGKILL}
    assert not any(_alive(*new.values()))
    assert all(_alive(*old.values()))

    shared.push(stop)
    shared.wait_for(lambda: sum(stop.command_id in report.acknowledged for report in shared.reports) == 2)
    assert not job.wholly_released(3), "that would speak for the older run as well"
    refused = shared.run("gives-up", "python train.py", generation=3, slots={2: 2}, live=True, joins=True)
    shared.acknowledged(refused)
    late = shared.send_stop("gives-up", generation=4, oldest=4, mode="kill")
    shared.acknowledged(late)
    shared.wait_for(lambda: job.slots_released(4) == [0, 1, 2, 3])
    job.start(5, {2: 2}, joins=True)
    assert all(_alive(*old.values()))
    job.end(5)
    assert len(shared.of("gives-up", RanksStarted)) == 3


def test_a_newer_run_that_does_not_join_ends_all_the_older_ones(shared: StubService) -> None:
    job = LiveJob(shared, "anew")
    old, new = job.start(1, {0: 0}), job.start(2, {1: 1}, joins=True)
    job.start(3, {0: 0, 1: 1})
    assert not any(_alive(*old.values(), *new.values()))
    started = shared.started("anew", 3).sequence
    assert job.wholly_released(1)
    assert max(one.sequence for one in shared.of("anew", Released) if one.generation < 3) < started
    job.end(3)


def test_only_what_the_service_names_is_ended(shared: StubService) -> None:
    job = LiveJob(shared, "named")
    old, new = job.start(1, {0: 0}), job.start(2, {1: 1}, joins=True)
    shared.stop.append(Holding(job_id="named", generation=2))
    shared.wait_for(lambda: 1 in job.slots_released(2))
    assert not any(_alive(*new.values()))
    assert all(_alive(*old.values()))
    job.end(2)


def test_an_older_order_never_replaces_a_newer_one(shared: StubService) -> None:
    job = LiveJob(shared, "orders")
    job.start(1, {0: 0, 1: 1})
    shared.acknowledged(LiveJob(shared, "nobody").order(7, (1, 0)))
    newest = job.order(5, (1, 1), (1, 0))
    job.wait_switched(5, (1, 0, 1), (1, 1, 0))
    shared.acknowledged(job.order(4, (1, 0)))
    shared.push(newest)
    job.order(6, (1, 0), (1, 1))
    job.wait_switched(6, (1, 0, 0), (1, 1, 1))
    assert len(job.switched(5)) == 2, "an order that arrives again changes nothing"
    assert not job.switched(4)
    job.end(6)


def test_a_run_finds_an_order_that_was_faster(shared: StubService) -> None:
    job = LiveJob(shared, "overtaken")
    job.start(1, {0: 0})
    job.order(3, (1, 0), (3, 1))
    job.wait_switched(3, (1, 0, 0))
    job.start(2, {5: 2}, joins=True)
    job.start(3, {1: 1}, joins=True)
    job.wait_switched(3, (1, 0, 0), (3, 1, 1))
    assert shared.exits("overtaken", 2)[5].signal == signal.SIGABRT, "not a member: it left"
    job.start(4, {7: 3}, joins=True)
    assert "order" not in shared.log("overtaken", 7, 4), "what was ordered before its time is not for it"
    job.end(4)
