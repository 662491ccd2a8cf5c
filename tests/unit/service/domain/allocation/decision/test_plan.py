"""One round on small clusters, and the sentence that comes with every decision."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headway.contract.agents import NodeState
from headway.contract.run_facts import ProgressSource, Resumption
from headway.contract.views.jobs import JobProgress, JobState, Reason
from service.domain.allocation.decision.plan import Action, Decision, Plan
from service.domain.allocation.decision.plan import decide as decide_round
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Measurement, Node, Snapshot
from service.domain.jobs.job import Job, class_of
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import NOW, job_of, node_of, snapshot_of, spec_of


def decide(snapshot: Snapshot) -> Plan:
    return decide_round(build_round(snapshot), Goodput(), solve)


def round_of(snapshot: Snapshot) -> dict[str, Decision]:
    return {one.job_id: one for one in decide(snapshot).decisions}


def job(
    job_id: str = "j", state: JobState = JobState.PENDING, low: int = 1, high: int = 1, **fields: Any
) -> Job:
    elastic = {"min": low, "max": high, **fields.pop("elastic", {})}
    spec = {key: fields.pop(key) for key in ("priority", "resources") if key in fields}
    return job_of(
        job_id,
        state,
        age_s=fields.pop("age_s", 600.0),
        spec=spec_of(job_id, elastic=elastic, **spec),
        **fields,
    )


def on(node: str, *slots: int) -> list[tuple[str, int]]:
    return [(node, slot) for slot in slots]


def speed(size: int, samples_per_s: float = 100.0) -> tuple[Measurement, ...]:
    return (Measurement("cpu", size, samples_per_s, 100),)


RUNNING = JobState.RUNNING


def test_a_waiting_job_is_started() -> None:
    one = round_of(snapshot_of([node_of("n", slots=2)], [job()]))["j"]
    assert (one.action, one.reason, one.allocation) == (Action.START, Reason.ALLOCATED, {"n": (0,)})
    assert one.message == "1 cpu slot on name-of-n"


def test_an_elastic_job_says_that_it_will_grow() -> None:
    one = round_of(snapshot_of([node_of("n", slots=8)], [job(low=2, high=8)]))["j"]
    assert one.message == "2 cpu slots on name-of-n; starts small, and grows once its speed is measured"


def test_a_job_of_a_known_class_starts_where_that_has_run_and_says_so() -> None:
    alike = job(low=1, high=8)
    shown = tuple(Measurement("cpu", slots, 100.0 * slots, 100) for slots in (1, 2, 4))
    snapshot = snapshot_of([node_of("n", slots=4)], [alike])
    snapshot = replace(snapshot, class_measurements={class_of(alike.spec): shown})
    one = round_of(snapshot)["j"]
    assert one.message == "4 cpu slots on name-of-n; size from measurements of jobs of its class"


@pytest.mark.parametrize("fields", [{"elastic": {"resize": "never"}}, {"pinned_size": 2}])
def test_a_job_that_cannot_grow_does_not_promise_it(fields: dict[str, Any]) -> None:
    one = round_of(snapshot_of([node_of("n", slots=2)], [job(low=1, high=8, **fields)]))["j"]
    assert one.message == "2 cpu slots on name-of-n"


def test_an_empty_cluster_says_how_to_begin() -> None:
    one = round_of(snapshot_of([], [job()]))["j"]
    assert (one.action, one.reason) == (Action.WAIT, Reason.WAITING_FOR_CAPACITY)
    assert "headway agent" in one.message


def test_lost_nodes_count_as_none() -> None:
    one = round_of(snapshot_of([node_of("n", state=NodeState.LOST)], [job()]))["j"]
    assert "no node has joined" in one.message


def test_a_device_that_nobody_has() -> None:
    wanting = job(resources={"devices": ["h100", "a100"]})
    one = round_of(snapshot_of([node_of("n")], [wanting]))["j"]
    assert (one.action, one.reason) == (Action.WAIT, Reason.NO_SUCH_DEVICE)
    assert one.message == "no node in service has h100 or a100; device kinds in service: cpu"


def test_a_device_that_is_only_on_a_draining_node() -> None:
    nodes = [node_of("n", kind="a100", state=NodeState.DRAINING)]
    one = round_of(snapshot_of(nodes, [job(resources={"devices": ["a100"]})]))["j"]
    assert one.message == "no node in service has a100; device kinds in service: none"


def test_waiting_job_on_drained_nodes_alone_names_the_command_that_ends_a_drain() -> None:
    one = round_of(snapshot_of([node_of("n", state=NodeState.DRAINED)], [job()]))["j"]
    assert one.reason is Reason.WAITING_FOR_CAPACITY
    assert one.message.startswith("no slot of any node is in service")
    assert "headway uncordon" in one.message


def test_more_than_the_cluster_has() -> None:
    one = round_of(snapshot_of([node_of("n", slots=2), node_of("g", kind="a100")], [job(low=3, high=3)]))["j"]
    assert one.message == "needs at least 3 slots of one kind, and the nodes in service have 2"


def test_a_full_cluster_says_who_holds_it() -> None:
    holders = [job(name, RUNNING, elastic={"resize": "never"}) for name in ("b", "a")]
    holders.append(job("c", RUNNING, low=2, high=2, elastic={"resize": "never"}))
    held = {"a": on("n", 0), "b": on("n", 1), "c": on("n", 2, 3)}
    one = round_of(snapshot_of([node_of("n", slots=4)], [*holders, job()], held))["j"]
    assert one.action is Action.WAIT
    assert one.message == (
        "needs at least 1 slot, and 0 of 4 are left; held by c (2), a (1), b (1); no running job holds more than its "
        "minimum; it starts once enough of their slots are free: their sizes are fixed"
    )


def test_a_running_job_grows_into_free_slots_when_it_gains() -> None:
    snapshot = snapshot_of(
        [node_of("n", slots=4)], [job(state=RUNNING, high=4)], {"j": on("n", 1)}, {"j": speed(1)}
    )
    one = round_of(snapshot)["j"]
    assert (one.action, one.reason, one.allocation) == (
        Action.CHANGE,
        Reason.BETTER_ALLOCATION,
        {"n": (0, 1)},
    )
    assert one.message == "from 1 cpu slot to 2 cpu slots: 100 -> 133 samples/s expected"


def test_a_size_that_was_tried_and_is_slower_is_left() -> None:
    measured = {"j": (*speed(1), *speed(2, 80.0))}
    snapshot = snapshot_of([node_of("n")], [job(state=RUNNING, high=2)], {"j": on("n", 0, 1)}, measured)
    one = round_of(snapshot)["j"]
    assert (one.action, one.allocation) == (Action.CHANGE, {"n": (0,)})
    assert one.message == "from 2 cpu slots to 1 cpu slot: 80 -> 100 samples/s measured"


def test_a_job_that_is_restarted_does_not_grow_on_a_guess() -> None:
    snapshot = snapshot_of([node_of("n")], [job(state=RUNNING, high=2)], {"j": on("n", 0)})
    kept = round_of(snapshot)["j"]
    assert kept.action is Action.KEEP
    assert "its speed at the present size is not measured" in kept.message
    script = JobProgress(source=ProgressSource.SCRIPT, samples=100, first_samples=0)
    known = snapshot_of(
        [node_of("n")], [job(state=RUNNING, high=2, progress=script)], {"j": on("n", 0)}, {"j": speed(1)}
    )
    kept = round_of(known)["j"]
    assert kept.action is Action.KEEP
    assert "is not known to resume after a restart" in kept.message
    shown = Resumption(generation=2, first=0, stopped_at=50, began_at=50, resumes=True)
    grows = job(state=RUNNING, high=2, progress=script.model_copy(update={"resumption": shown}))
    grows = replace(known.jobs["j"], progress=grows.progress)
    assert round_of(replace(known, jobs={"j": grows}))["j"].action is Action.CHANGE


def test_a_running_job_shrinks_for_one_that_waits() -> None:
    wide = job("wide", RUNNING, high=2)
    snapshot = snapshot_of([node_of("n")], [wide, job("late")], {"wide": on("n", 0, 1)}, {"wide": speed(2)})
    plan = round_of(snapshot)
    assert (plan["wide"].action, plan["wide"].allocation) == (Action.CHANGE, {"n": (0,)})
    assert plan["wide"].message == ("from 2 cpu slots to 1 cpu slot: makes room for the minimum of late")
    assert plan["late"].action is Action.WAIT
    assert plan["late"].message == "gets 1 cpu slot as soon as wide has released them"


def test_high_priority_takes_everything_from_low() -> None:
    low = job("low", RUNNING, priority=0)
    snapshot = snapshot_of([node_of("n", slots=1)], [low, job("high", priority=100)], {"low": on("n", 0)})
    plan = round_of(snapshot)
    assert (plan["low"].action, plan["low"].reason) == (Action.VACATE, Reason.PREEMPTED)
    assert "its slots go to high (priority 100 against 0" in plan["low"].message
    assert plan["high"].action is Action.WAIT


def test_equals_do_not_preempt_one_another() -> None:
    snapshot = snapshot_of(
        [node_of("n", slots=1)], [job("one", RUNNING, age_s=60), job("two", age_s=0)], {"one": on("n", 0)}
    )
    plan = round_of(snapshot)
    assert [plan["one"].action, plan["two"].action] == [Action.KEEP, Action.WAIT]


def test_a_job_that_stays_says_why_not_otherwise() -> None:
    young = job(state=RUNNING, high=2, age_s=3)
    snapshot = snapshot_of([node_of("n")], [young], {"j": on("n", 0)}, {"j": speed(1)})
    one = round_of(snapshot)["j"]
    assert (one.action, one.reason) == (Action.KEEP, Reason.PROGRESSING)
    assert one.message == (
        "1 cpu slot: optimal under the model, gap 0.00%; 2 slots: the job started or changed 3 s ago; a change waits until 30 s"
    )


def test_a_request_is_followed_and_kept() -> None:
    asked = job(state=RUNNING, high=4, pinned_size=3, age_s=0)
    snapshot = snapshot_of([node_of("n", slots=4)], [asked], {"j": on("n", 0)})
    one = round_of(snapshot)["j"]
    assert (one.action, one.reason) == (Action.CHANGE, Reason.USER_REQUEST)
    assert one.message == "from 1 cpu slot to 3 cpu slots, as requested"
    there = snapshot_of([node_of("n", slots=4)], [asked], {"j": on("n", 0, 1, 2)})
    one = round_of(there)["j"]
    assert (one.action, one.message) == (Action.KEEP, "fixed at 3 cpu slots by request")


def test_a_draining_node_is_left_for_another() -> None:
    nodes = [node_of("old", state=NodeState.DRAINING), node_of("new")]
    one = round_of(snapshot_of(nodes, [job(state=RUNNING, age_s=0)], {"j": on("old", 0)}))["j"]
    assert (one.action, one.reason, one.allocation) == (Action.CHANGE, Reason.NODE_DRAINED, {"new": (0,)})
    assert one.message == "moves its 1 cpu slot: name-of-old is draining"


def test_a_draining_node_is_left_even_for_nothing() -> None:
    nodes = [node_of("old", state=NodeState.DRAINING)]
    one = round_of(snapshot_of(nodes, [job(state=RUNNING)], {"j": on("old", 0)}))["j"]
    assert (one.action, one.reason) == (Action.VACATE, Reason.NODE_DRAINED)
    assert one.message == "name-of-old is draining, and no other node has enough free slots; the job waits"


def test_what_runs_on_a_cordoned_node_stays_and_nothing_comes() -> None:
    nodes = [node_of("n", slots=3, state=NodeState.CORDONED)]
    jobs = [job("in", RUNNING, high=3), job("out")]
    plan = round_of(snapshot_of(nodes, jobs, {"in": on("n", 0)}, {"in": speed(1)}))
    assert [plan["in"].action, plan["out"].action] == [Action.KEEP, Action.WAIT]


def test_a_gpu_that_is_gone_is_left() -> None:
    node = Node(id="n", name="host", state=NodeState.READY, slots={1: "cpu", 2: "cpu"})
    snapshot = snapshot_of([node], [job(state=RUNNING, low=2, high=2)], {"j": on("n", 0, 1)})
    one = round_of(snapshot)["j"]
    assert (one.action, one.reason, one.allocation) == (Action.CHANGE, Reason.BAD_DEVICE, {"n": (1, 2)})
    assert one.message == "moves its 2 cpu slots: host no longer has all of its slots"


def confined(slots: dict[int, str]) -> Node:
    return Node(
        id="n", name="host", state=NodeState.READY, slots=slots, quarantined={0: "Xid 79: off the bus"}
    )


def test_a_slot_in_quarantine_is_left_and_given_to_nobody() -> None:
    jobs = [job(state=RUNNING, low=2, high=2), job("waits")]
    plan = round_of(snapshot_of([confined({1: "cpu", 2: "cpu"})], jobs, {"j": on("n", 0, 1)}))
    one = plan["j"]
    assert (one.action, one.reason, one.allocation) == (Action.CHANGE, Reason.BAD_DEVICE, {"n": (1, 2)})
    assert one.message == "moves its 2 cpu slots: slot 0 of host is in quarantine: Xid 79: off the bus"
    assert plan["waits"].action is Action.WAIT
    free = round_of(snapshot_of([confined({1: "cpu"})], [job("a"), job("b")]))
    assert sorted(one.action for one in free.values()) == [Action.START, Action.WAIT]


def test_a_job_whose_only_slot_is_bad_waits_and_is_told_why_nothing_is_there() -> None:
    (one,) = round_of(snapshot_of([confined({})], [job(state=RUNNING)], {"j": on("n", 0)})).values()
    assert (one.action, one.reason) == (Action.VACATE, Reason.BAD_DEVICE)
    assert one.message == (
        "slot 0 of host is in quarantine: Xid 79: off the bus, and no other node has enough free slots; the job waits"
    )
    (one,) = round_of(snapshot_of([confined({})], [job("waits", low=1)])).values()
    assert one.action is Action.WAIT
    assert one.message.endswith("; 1 slot more in quarantine (`headway nodes`)")


def test_a_live_job_goes_on_with_the_good_part_of_its_slots() -> None:
    running = job(state=RUNNING, low=1, high=2, live=True)
    (one,) = round_of(snapshot_of([confined({1: "cpu"})], [running], {"j": on("n", 0, 1)})).values()
    assert (one.action, one.reason, one.allocation) == (Action.CHANGE, Reason.BAD_DEVICE, {"n": (1,)})


@pytest.mark.parametrize("begun", [False, True])
def test_a_change_waits_for_the_first_step(begun: bool) -> None:
    """Also the job that is to get the slots waits: nothing is taken from the one that has made no step."""
    progress = JobProgress(begun_generation=int(begun))
    wide = job("wide", RUNNING, high=2, age_s=5.0, generation=1, live=begun, progress=progress)
    snapshot = snapshot_of(
        [node_of("n")], [wide, job("urgent", priority=90)], {"wide": on("n", 0, 1)}, {"wide": speed(2)}
    )
    plan = round_of(snapshot)
    assert plan["wide"].action is (Action.CHANGE if begun else Action.KEEP)
    assert plan["urgent"].action is Action.WAIT
    assert len(plan["wide"].allocation["n"]) == 2 - begun


def test_a_job_that_must_leave_does_not_wait_for_its_first_step() -> None:
    nodes = [node_of("old", 1, state=NodeState.DRAINING), node_of("new", 1)]
    plan = round_of(snapshot_of(nodes, [job(state=RUNNING, age_s=5.0, generation=1)], {"j": on("old", 0)}))
    assert (plan["j"].action, plan["j"].allocation) == (Action.CHANGE, {"new": (0,)})


@pytest.mark.parametrize(
    "state", [JobState.STARTING, JobState.RESIZING, JobState.RECOVERING, JobState.CANCELLING, JobState.PAUSED]
)
def test_a_job_on_its_way_is_left_alone_and_its_slots_too(state: JobState) -> None:
    snapshot = snapshot_of(
        [node_of("n", slots=1)], [job("moving", state), job("waits")], {"moving": on("n", 0)}
    )
    plan = round_of(snapshot)
    assert "moving" not in plan
    assert plan["waits"].action is Action.WAIT


def test_a_live_job_whose_newcomers_fail_stays_where_it_is_for_a_while() -> None:
    """Even on a node that is being drained: trying again at once would fail at once."""
    job = job_of(
        "j",
        JobState.RUNNING,
        age_s=60,
        spec=spec_of("j", elastic={"min": 1, "max": 1}),
        live=True,
        growth_failures=2,
        grow_after=NOW + timedelta(seconds=20),
    )
    nodes = [node_of("old", 1, state=NodeState.DRAINING), node_of("new", 1)]
    snapshot = snapshot_of(nodes, [job], {"j": [("old", 0)]})
    (decision,) = decide(snapshot).decisions
    assert (decision.action, decision.reason) == (Action.KEEP, Reason.START_FAILED)
    assert decision.allocation == {"old": (0,)}
    assert "2 times in a row; retried from 12:00:20 UTC on" in decision.message
    later = replace(snapshot, now=NOW + timedelta(seconds=20))
    (decision,) = decide(later).decisions
    assert decision.action is Action.CHANGE


def test_a_job_whose_size_the_model_finds_impossible_stops_nobodys_round() -> None:
    odd = job("odd", RUNNING, high=4, live=True, generation=1, progress=JobProgress(global_batch=2))
    plan = round_of(snapshot_of([node_of("n", 8)], [odd, job("other")], {"odd": on("n", 0, 1, 2, 3)}))
    assert plan["other"].action is Action.START
    assert plan["odd"].action in {Action.KEEP, Action.CHANGE}


@pytest.mark.parametrize("var", [0.0, 5e-324])
def test_noise_too_small_to_be_true_stops_nobodys_round(var: float) -> None:
    batch = {"policy": "adaptive", "global": 64, "max_global": 1024}
    adaptive = job_of(
        "j",
        RUNNING,
        age_s=100,
        spec=spec_of("j", batch=batch),
        live=True,
        generation=1,
        progress=JobProgress(global_batch=128, max_global_batch=1024),
    )
    one = Measurement(
        "cpu", 1, 500.0, 200, generation=1, global_batch=128, gradient_sqr=5e-324, gradient_var=var
    )
    plan = round_of(snapshot_of([node_of("n", 1)], [adaptive], {"j": on("n", 0)}, {"j": (one,)}))
    assert plan["j"].action is Action.KEEP


def test_nobody_makes_room_for_a_job_that_cannot_come() -> None:
    """Another kind would be far better for `a`, but its newcomers did not come up: `b` stays where it is."""
    waits = NOW + timedelta(seconds=300)
    a = job("a", RUNNING, 2, 2, live=True, generation=1, grow_after=waits, growth_failures=1, priority=100)
    b = job("b", RUNNING, 2, 2, live=True, generation=1, priority=0)
    measured = {
        "a": (Measurement("cpu", 2, 10.0, 200), Measurement("h100", 2, 1000.0, 200)),
        "b": (Measurement("cpu", 2, 10.0, 200), Measurement("h100", 2, 11.0, 200)),
    }
    nodes = [node_of("n"), node_of("g", kind="h100")]
    plan = round_of(snapshot_of(nodes, [a, b], {"a": on("n", 0, 1), "b": on("g", 0, 1)}, measured))
    assert {one.action for one in plan.values()} == {Action.KEEP}


def test_a_job_left_below_its_sizes_stays_there_while_newcomers_cannot_come() -> None:
    waits = NOW + timedelta(seconds=300)
    left = job("j", RUNNING, 3, 6, live=True, generation=1, grow_after=waits, growth_failures=1)
    snapshot = snapshot_of([node_of("n", 8)], [left], {"j": on("n", 0, 1)})
    assert round_of(snapshot)["j"].action is Action.KEEP
    assert round_of(replace(snapshot, now=waits))["j"].action is Action.CHANGE


def test_a_job_that_no_allowed_size_has_room_for_is_told_so() -> None:
    left = job("j", RUNNING, 3, 6, live=True, generation=1)
    one = round_of(snapshot_of([node_of("n", 2)], [left], {"j": on("n", 0, 1)}))["j"]
    assert one.action is Action.VACATE
    assert "which its job file does not allow" in one.message
