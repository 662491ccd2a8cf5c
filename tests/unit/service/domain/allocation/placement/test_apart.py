"""No job spans nodes that cannot talk: it gets other slots, exchanges them, takes fewer, or waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from headway.contract.views.jobs import JobState, Reason
from service.domain.allocation.decision.plan import Action, Decision, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.apart import Apart
from service.domain.cluster.snapshot import Measurement, Snapshot
from service.domain.jobs.job import Job, size_of
from service.domain.policies.goodput import Goodput
from tests.unit.service.builders import job_of, node_of, snapshot_of, spec_of


def round_of(snapshot: Snapshot) -> dict[str, Decision]:
    return {one.job_id: one for one in decide(build_round(snapshot), Goodput(), solve).decisions}


def job(job_id: str, low: int, high: int, state: JobState = JobState.PENDING) -> Job:
    return job_of(job_id, state, age_s=600.0, spec=spec_of(job_id, elastic={"min": low, "max": high}))


def apart(*pairs: str) -> Apart:
    return Apart({frozenset(pair): f"{pair[0]} cannot reach {pair[1]}: no answer" for pair in pairs})


def cluster(nodes: Mapping[str, int], jobs: list[Job], bad: Apart, **fields: object) -> Snapshot:
    there = [node_of(name, slots=slots) for name, slots in nodes.items()]
    return replace(snapshot_of(there, jobs, **fields), apart=bad)


def test_a_job_is_placed_on_other_nodes() -> None:
    one = round_of(cluster(dict.fromkeys("abc", 1), [job("j", 2, 2)], apart("ab")))["j"]
    assert (one.action, size_of(one.allocation)) == (Action.START, 2)
    assert set(one.allocation) != {"a", "b"}


def test_two_starting_jobs_exchange_slots() -> None:
    jobs = [job("j", 2, 2), job("k", 2, 2)]
    found = round_of(cluster(dict.fromkeys("abcd", 1), jobs, apart("ab", "cd")))
    assert [found[one].action for one in "jk"] == [Action.START, Action.START]
    assert sorted(node for one in "jk" for node in found[one].allocation) == list("abcd")
    assert all(set(found[one].allocation) not in ({"a", "b"}, {"c", "d"}) for one in "jk")


def test_a_job_of_fixed_size_waits_and_the_pair_is_named() -> None:
    one = round_of(cluster({"a": 1, "b": 1}, [job("j", 2, 2)], apart("ab")))["j"]
    assert (one.action, one.reason) == (Action.WAIT, Reason.UNREACHABLE)
    assert "a cannot reach b: no answer" in one.message


def test_an_elastic_job_takes_fewer_slots_and_then_stays() -> None:
    faster = {"j": tuple(Measurement("cpu", size, 100.0 * size, 100) for size in (1, 2))}
    start = cluster({"a": 1, "b": 1}, [job("j", 1, 2)], apart("ab"), measurements=faster)
    one = round_of(start)["j"]
    assert (one.action, size_of(one.allocation), one.reason) == (Action.START, 1, Reason.UNREACHABLE)
    running = cluster(
        {"a": 1, "b": 1},
        [job("j", 1, 2, JobState.RUNNING)],
        apart("ab"),
        held={"j": [("a", 0)]},
        measurements=faster,
    )
    kept = round_of(running)["j"]
    assert (kept.action, kept.allocation, kept.reason) == (Action.KEEP, {"a": (0,)}, Reason.UNREACHABLE)


def test_a_job_that_runs_on_both_nodes_is_left_alone() -> None:
    one = job("j", 2, 2, JobState.RUNNING)
    kept = round_of(cluster({"a": 1, "b": 1}, [one], apart("ab"), held={"j": [("a", 0), ("b", 0)]}))["j"]
    assert (kept.action, kept.reason) == (Action.KEEP, Reason.PROGRESSING)


def test_a_node_that_nobody_reaches_gets_jobs_of_one_node() -> None:
    alone = Apart(alone={"a": "b cannot reach a: no answer"})
    three = round_of(cluster({"a": 2, "b": 2}, [job("j", 3, 3)], alone))["j"]
    assert (three.action, three.reason) == (Action.WAIT, Reason.UNREACHABLE)
    two = round_of(cluster({"a": 2}, [job("j", 2, 2)], alone))["j"]
    assert (two.action, two.allocation) == (Action.START, {"a": (0, 1)})


def test_a_job_that_cannot_be_placed_keeps_no_slots_from_others() -> None:
    alone = Apart(alone={"a": "b cannot reach a: no answer"})
    found = round_of(cluster({"a": 2, "b": 2}, [job("j", 3, 3), job("k", 2, 2)], alone))
    assert (found["j"].action, found["j"].reason) == (Action.WAIT, Reason.UNREACHABLE)
    assert (found["k"].action, len(found["k"].allocation)) == (Action.START, 1)


_SIZES = st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted)


@given(
    nodes=st.lists(st.integers(1, 4), min_size=2, max_size=6),
    sizes=st.lists(_SIZES, min_size=1, max_size=6),
    data=st.data(),
)
def test_no_new_placement_spans_a_bad_pair_or_grants_a_slot_twice(
    nodes: list[int], sizes: list[list[int]], data: st.DataObject
) -> None:
    named = {chr(ord("a") + at): slots for at, slots in enumerate(nodes)}
    bad = data.draw(st.sets(st.sampled_from(["".join(pair) for pair in combinations(named, 2)])))
    jobs = [job(f"j{at}", low, high) for at, (low, high) in enumerate(sizes)]
    snapshot = cluster(named, jobs, apart(*sorted(bad)))
    found = round_of(snapshot)
    granted = [(node, slot) for one in found.values() for node, own in one.allocation.items() for slot in own]
    assert len(set(granted)) == len(granted)
    for one in found.values():
        assert not snapshot.apart.within(one.allocation)
        assert not one.allocation or size_of(one.allocation) in snapshot.jobs[one.job_id].sizes
    if not bad:
        assert found == round_of(replace(snapshot, apart=Apart()))
