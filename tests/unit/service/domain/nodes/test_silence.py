"""Report intervals of nodes, and the silence that they may keep."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.nodes.silence import MOST_REPORTS_PER_S, REPORTS_PER_S, SilenceRule

rules = st.builds(
    lambda silence_s, more_s: SilenceRule(silence_s, silence_s + more_s),
    st.floats(1.0, 600.0),
    st.floats(0.0, 3600.0),
)
nodes = st.integers(0, 100_000)


def test_few_nodes_report_as_ever_and_more_of_them_less_often() -> None:
    rule = SilenceRule(15.0, 300.0)
    assert rule.slower_s(REPORTS_PER_S, 3.0) is None
    assert rule.slower_s(4 * REPORTS_PER_S, 3.0) == 4.0
    assert rule.slower_s(1500, 3.0) == 5.0, "three reports before a node is LOST"
    assert rule.silence_of(1500) == 15.0
    assert SilenceRule(6.0, 300.0).slower_s(600, 3.0) is None, "never more often than without"


def test_of_many_nodes_each_may_be_silent_for_longer() -> None:
    rule = SilenceRule(15.0, 300.0)
    assert round(rule.silence_of(5000)) == 45
    assert round(rule.slower_s(5000, 3.0) or 0.0) == 15
    assert rule.silence_of(1_000_000) == 300.0, "by then its ranks have ended by themselves"


@given(rules, nodes)
@settings(max_examples=50)
def test_nobody_is_lost_sooner_than_was_said_nor_later_than_its_lease(rule: SilenceRule, count: int) -> None:
    assert rule.silence_s <= rule.silence_of(count) <= rule.lease_s


@given(rules, nodes, st.floats(0.1, 10.0))
@settings(max_examples=50)
def test_three_reports_are_due_before_a_node_is_lost(rule: SilenceRule, count: int, usual_s: float) -> None:
    every_s = rule.slower_s(count, usual_s)
    assert every_s is None or usual_s < every_s <= rule.silence_of(count) / 3


@given(rules, nodes)
@settings(max_examples=50)
def test_no_more_reports_come_than_can_be_heard_unless_leases_end_first(
    rule: SilenceRule, count: int
) -> None:
    every_s = rule.slower_s(count, 3.0) or 3.0
    heard = count / every_s <= MOST_REPORTS_PER_S * (1 + 1e-9)
    assert heard or rule.silence_of(count) == rule.lease_s


@given(rules, nodes, nodes)
@settings(max_examples=50)
def test_more_nodes_are_never_given_less_time(rule: SilenceRule, some: int, others: int) -> None:
    fewer, more = sorted((some, others))
    assert rule.silence_of(fewer) <= rule.silence_of(more)
