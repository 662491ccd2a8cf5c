"""A diagnosis of any cluster: the same checks in the same order, and whatever is not well says why and what mends it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from headway.contract.agents import NodeState
from headway.contract.views.diagnosis import Level
from headway.contract.views.jobs import JobState
from service.domain.nodes.diagnosis import Facts, JobFacts, NodeFacts, diagnose
from service.domain.nodes.silence import SilenceRule

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
moments = st.floats(-10, 1e6).map(lambda ago_s: NOW - timedelta(seconds=ago_s))
names = st.text("abc-", min_size=1, max_size=6)
nodes = st.builds(
    NodeFacts,
    name=names,
    state=st.sampled_from(NodeState),
    seen_at=moments,
    agent_version=st.sampled_from(["1.0", "1.1"]),
    quarantined=st.integers(0, 9),
    unacknowledged=st.integers(0, 9),
)
jobs = st.builds(
    JobFacts,
    name=names,
    state=st.sampled_from(JobState),
    state_since=moments,
    blocked_by_budget=st.booleans(),
)
facts = st.builds(
    Facts,
    nodes=st.lists(nodes, max_size=8),
    jobs=st.lists(jobs, max_size=8),
    led_at=st.none() | moments,
    known_until=st.none() | moments,
    restored_at=st.none() | moments,
)
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
]


@given(facts)
def test_every_finding_says_why_and_what_mends_it(seen: Facts) -> None:
    checks = diagnose(seen, version="1.1", silence=SilenceRule(15.0, 300.0), now=NOW)
    assert [check.name for check in checks][: len(ALWAYS)] == ALWAYS
    assert {check.name for check in checks} <= {*ALWAYS, "restore"}
    for check in checks:
        assert check.found.endswith(".")
        assert bool(check.why and check.hint) == (check.level is not Level.OK), check


def test_a_large_cluster_is_not_listed_whole() -> None:
    many = [
        NodeFacts(
            name=f"n{number}",
            state=NodeState.LOST,
            seen_at=NOW,
            agent_version="1.1",
            quarantined=0,
            unacknowledged=0,
        )
        for number in range(50)
    ]
    seen = Facts(nodes=many, jobs=[], led_at=NOW, known_until=None, restored_at=None)
    (lost,) = [
        check
        for check in diagnose(seen, version="1.1", silence=SilenceRule(15.0, 300.0), now=NOW)
        if check.name == "lost nodes"
    ]
    assert lost.found == "LOST: n0, n1, n10 and 47 more."


def test_commands_of_a_lost_node_wait_as_they_should() -> None:
    """It reads them when it is back."""
    lost = NodeFacts(
        name="n", state=NodeState.LOST, seen_at=NOW, agent_version="1.1", quarantined=0, unacknowledged=3
    )
    seen = Facts(nodes=[lost], jobs=[], led_at=NOW, known_until=None, restored_at=None)
    checks = {
        check.name: check.level
        for check in diagnose(seen, version="1.1", silence=SilenceRule(15.0, 300.0), now=NOW)
    }
    assert checks["commands"] is Level.OK
