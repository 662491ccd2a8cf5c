"""A diagnosis of any cluster: the same checks in the same order, and every finding has a reason and a remedy."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.agents import NodeState
from headway.contract.standstills import Standstill
from headway.contract.views.diagnosis import Check, Level
from headway.contract.views.jobs import JobState
from service.domain.nodes.diagnosis import (
    COMMAND_LATE_S,
    LEADER_LATE_S,
    LONGEST_CHANGE_S,
    RESTORE_SHOWN,
    Facts,
    JobFacts,
    NodeFacts,
    SaveFacts,
    diagnose,
    standing,
)
from service.domain.nodes.silence import SilenceRule

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
VERSION = "1.1"
ALWAYS = [
    "scheduler",
    "nodes",
    "lost nodes",
    "reports",
    "agents",
    "quarantine",
    "isolation",
    "commands",
    "jobs",
    "budgets",
    "saves",
]


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def node(name: str = "n", state: NodeState = NodeState.READY, **fields: Any) -> NodeFacts:
    """A node on which all is well."""
    usual = {"seen_at": NOW, "agent_version": VERSION, "quarantined": 0, "unacknowledged": 0}
    return NodeFacts(name=name, state=state, **(usual | fields))


def job(
    name: str = "j", state: JobState = JobState.RUNNING, *, for_s: float = 0.0, blocked: bool = False
) -> JobFacts:
    return JobFacts(name=name, state=state, state_since=ago(for_s), blocked_by_budget=blocked)


WELL = Facts(nodes=[node()], jobs=[job()], led_at=NOW, known_until=None, restored_at=None)


def checks(facts: Facts) -> dict[str, Check]:
    found = diagnose(facts, version=VERSION, silence=SilenceRule(15.0, 300.0), now=NOW)
    return {check.name: check for check in found}


def with_nodes(*nodes: NodeFacts) -> Facts:
    return replace(WELL, nodes=list(nodes))


def with_jobs(*jobs: JobFacts) -> Facts:
    return replace(WELL, jobs=list(jobs))


moments = st.floats(-10, 1e6).map(ago)
names = st.text("abc-", min_size=1, max_size=6)
facts = st.builds(
    Facts,
    nodes=st.lists(
        st.builds(
            NodeFacts,
            name=names,
            state=st.sampled_from(NodeState),
            seen_at=moments,
            agent_version=st.sampled_from(["1.0", VERSION]),
            quarantined=st.integers(0, 9),
            unacknowledged=st.integers(0, 9),
            withheld=st.sampled_from(["", "scratch is shared"]),
        ),
        max_size=6,
    ),
    jobs=st.lists(
        st.builds(
            JobFacts,
            name=names,
            state=st.sampled_from(JobState),
            state_since=moments,
            blocked_by_budget=st.booleans(),
        ),
        max_size=4,
    ),
    led_at=st.none() | moments,
    known_until=st.none() | moments,
    restored_at=st.none() | moments,
    saves=st.lists(
        st.builds(SaveFacts, job=names, save_s=st.floats(0, 1e6), kill_wait_s=st.floats(0, 1e6)), max_size=4
    ),
)


@given(facts)
@settings(max_examples=50)
def test_every_finding_has_a_reason_and_a_remedy(given: Facts) -> None:
    found = diagnose(given, version=VERSION, silence=SilenceRule(15.0, 300.0), now=NOW)
    assert [check.name for check in found][: len(ALWAYS)] == ALWAYS
    assert {check.name for check in found} <= {*ALWAYS, "restore"}
    for check in found:
        assert check.found.endswith(".")
        assert bool(check.why and check.hint) == (check.level is not OK), check


@given(facts, st.sampled_from(["led_at", "nodes", "jobs", "saves"]))
@settings(max_examples=40)
def test_a_check_depends_on_its_own_facts_only(given: Facts, part: str) -> None:
    of_part = {
        "led_at": {"scheduler"},
        "nodes": {"nodes", "lost nodes", "reports", "agents", "quarantine", "isolation", "commands"},
        "jobs": {"jobs", "budgets"},
        "saves": {"saves"},
    }[part]
    before, after = checks(given), checks(replace(given, **{part: getattr(WELL, part)}))
    for name, check in before.items():
        if name not in of_part:
            assert after[name] == check
    for name in of_part:
        assert after[name].level is OK


def test_a_cluster_that_is_well_has_no_findings() -> None:
    found = checks(WELL)
    assert list(found) == ALWAYS
    assert {check.level for check in found.values()} == {OK}


@pytest.mark.parametrize(
    ("led_at", "level", "found"),
    [
        (NOW, OK, "leads"),
        (ago(-5), OK, "leads"),
        (ago(LEADER_LATE_S), OK, "leads"),
        (ago(LEADER_LATE_S + 1), FAIL, "16s"),
        (None, FAIL, "ever"),
    ],
)
def test_a_scheduler_must_have_renewed_its_term(led_at: datetime | None, level: Level, found: str) -> None:
    check = checks(replace(WELL, led_at=led_at))["scheduler"]
    assert check.level is level
    assert found in check.found


@pytest.mark.parametrize(
    ("states", "level", "found"),
    [
        ([], WARN, "0 of 0 "),
        ([NodeState.CORDONED, NodeState.LOST], WARN, "0 of 2 "),
        ([NodeState.READY, NodeState.DRAINING], OK, "1 of 2 "),
    ],
)
def test_some_node_must_be_ready(states: list[NodeState], level: Level, found: str) -> None:
    check = checks(with_nodes(*(node(state.value, state) for state in states)))["nodes"]
    assert check.level is level
    assert check.found.startswith(found)


def test_lost_nodes_are_named() -> None:
    check = checks(with_nodes(node("a"), node("c", NodeState.LOST), node("b", NodeState.LOST)))["lost nodes"]
    assert check.level is WARN
    assert " b, c." in check.found


@pytest.mark.parametrize(
    ("count", "found"),
    [(1, " n00."), (3, " n00, n01, n02."), (50, " n00, n01, n02 and 47 more.")],
)
def test_a_large_cluster_is_not_listed_whole(count: int, found: str) -> None:
    lost = [node(f"n{number:02}", NodeState.LOST) for number in range(count)]
    assert checks(with_nodes(*lost))["lost nodes"].found.endswith(found)


@pytest.mark.parametrize(
    ("seen_s", "state", "level"),
    [
        (15.0, NodeState.READY, OK),
        (15.1, NodeState.READY, WARN),
        (15.1, NodeState.CORDONED, WARN),
        (1e6, NodeState.LOST, OK),  # it is reported as LOST
    ],
)
def test_a_silent_agent_is_reported_before_its_node_is_lost(
    seen_s: float, state: NodeState, level: Level
) -> None:
    check = checks(with_nodes(node("a", state, seen_at=ago(seen_s)), node("b")))["reports"]
    assert check.level is level
    assert level is OK or ("15 s" in check.found and check.found.endswith(" a."))


def test_in_a_large_cluster_nodes_may_be_silent_for_longer() -> None:
    """The permitted silence grows with the nodes that are present: 3 reports of 3330 nodes at 333 a second."""
    many = [node(f"n{index}", seen_at=ago(29.0)) for index in range(3330)]
    assert checks(with_nodes(*many))["reports"].level is OK
    lost = [replace(one, state=NodeState.LOST) for one in many[1000:]]
    assert checks(with_nodes(*many[:1000], *lost))["reports"].level is WARN


def test_agents_of_another_version_are_named_with_their_versions() -> None:
    others = [node("a", agent_version="1.0"), node("b", agent_version="0.9"), node("c", agent_version="1.0")]
    check = checks(with_nodes(*others, node("d")))["agents"]
    assert check.level is WARN
    assert "1.1" in check.found
    assert check.found.endswith("0.9, 1.0: a, b, c.")
    gone = [replace(one, state=NodeState.LOST) for one in others]
    assert checks(with_nodes(*gone, node("d")))["agents"].level is OK


def test_slots_in_quarantine_are_counted_on_lost_nodes_too() -> None:
    check = checks(with_nodes(node("a", quarantined=2), node("b"), node("c", NodeState.LOST, quarantined=1)))
    assert check["quarantine"].level is WARN
    assert check["quarantine"].found.endswith(": 3, on a, c.")


def test_an_agent_that_withholds_its_slots_is_a_failure() -> None:
    broken = [node("b", withheld="scratch is shared"), node("a", withheld="no cgroups")]
    check = checks(with_nodes(node("c"), *broken))["isolation"]
    assert check.level is FAIL
    assert check.found.endswith(": a, b. b: scratch is shared."), "the first reason stands for all"
    assert checks(with_nodes(node("b", NodeState.LOST, withheld="x")))["isolation"].level is OK


@pytest.mark.parametrize(
    ("state", "level"),
    [(NodeState.READY, FAIL), (NodeState.CORDONED, FAIL), (NodeState.DRAINING, FAIL), (NodeState.LOST, OK)],
)
def test_commands_wait_only_for_a_lost_node(state: NodeState, level: Level) -> None:
    check = checks(with_nodes(node("a", state, unacknowledged=3), node("b", unacknowledged=0)))["commands"]
    assert check.level is level
    assert level is OK or check.found.endswith(f"{COMMAND_LATE_S:.0f} s: 3, sent to a.")


def test_late_commands_are_added_up() -> None:
    check = checks(with_nodes(node("a", unacknowledged=3), node("b", unacknowledged=2)))["commands"]
    assert ": 5, sent to a, b." in check.found


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("for_s", [LONGEST_CHANGE_S, LONGEST_CHANGE_S + 1])
def test_a_job_is_stuck_after_too_long_between_two_states(state: JobState, for_s: float) -> None:
    transitional = {JobState.STARTING, JobState.RESIZING, JobState.RECOVERING, JobState.CANCELLING}
    stuck = state in transitional and for_s > LONGEST_CHANGE_S
    check = checks(with_jobs(job("train", state, for_s=for_s), job()))["jobs"]
    assert check.level is (WARN if stuck else OK)
    if stuck:
        assert check.found.endswith(f": train ({state} for 15m01s).")


def test_saves_that_outlast_the_kill_wait_are_named_worst_first() -> None:
    late = [("b", 30.5, 30.0), ("a", 90.0, 30.0), ("c", 30.0, 30.0)]
    saves = [SaveFacts(job=name, save_s=save_s, kill_wait_s=wait_s) for name, save_s, wait_s in late]
    check = checks(replace(WELL, saves=saves))["saves"]
    assert check.level is WARN
    assert check.found.endswith(": a (90 s, killed after 30 s), b (30 s, killed after 30 s).")


def test_jobs_without_money_are_named() -> None:
    check = checks(with_jobs(job("b", blocked=True), job("a", blocked=True), job("c")))["budgets"]
    assert check.level is WARN
    assert check.found.endswith(": a, b.")


@pytest.mark.parametrize(
    ("restored_at", "known_until", "shown"),
    [
        (ago(60), ago(3600), True),
        (NOW - RESTORE_SHOWN, ago(1e6), True),
        (NOW - RESTORE_SHOWN - timedelta(seconds=1), ago(1e6), False),
        (None, ago(3600), False),
        (ago(60), None, False),
    ],
)
def test_a_restored_database_is_mentioned_for_a_week(
    restored_at: datetime | None, known_until: datetime | None, shown: bool
) -> None:
    found = checks(replace(WELL, restored_at=restored_at, known_until=known_until))
    assert ("restore" in found) is shown
    assert not shown or found["restore"].level is WARN


def test_a_restore_names_both_times() -> None:
    found = checks(replace(WELL, restored_at=ago(60), known_until=ago(7200)))["restore"].found
    assert found.index("2026-11-21 10:00:00 UTC") < found.index("2026-11-21 11:59:00 UTC")


def test_loops_that_stood_still_are_a_warning_that_names_the_longest() -> None:
    short, long = (
        Standstill(
            process=f"api on host, process {n}",
            at_s=1.0,
            stood_s=stood_s,
            own_s=stood_s,
            stack=("a:1 b", f"c:{n} d"),
        )
        for n, stood_s in ((1, 0.2), (2, 8.04))
    )
    check = standing([long, short])
    assert check.level is Level.WARN
    assert "2 times" in check.found
    assert "8.0 s: api on host, process 2 at c:2 d" in check.found
    assert standing([]).level is Level.OK
