"""The pairs that are probed, the order of probes, and the nodes that failing connections keep apart."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.nodes.links import (
    AGAIN_S,
    ALL_PAIRS_UP_TO,
    BELIEVED_S,
    FAILED_AGAIN_S,
    JOB_BELIEVED_S,
    PEERS,
    PROBES_AT_ONCE,
    TRANSFER_AGAIN_S,
    DueProbe,
    Link,
    ProbeHost,
    after_probe,
    apart_of,
    due_probes,
    sampled_pairs,
)
from tests.unit.service.builders import NOW


def names(count: int) -> list[str]:
    return [f"n{number:04d}" for number in range(count)]


def hosts(count: int) -> dict[str, ProbeHost]:
    return {one: ProbeHost(one, f"10.0.0.{one}", listens=True) for one in names(count)}


def link(
    source: str, target: str, *, failed: bool = False, age_s: float = 0.0, measured: bool = True
) -> Link:
    at = NOW - timedelta(seconds=age_s)
    failure = f"{source} cannot reach {target}: no answer" if failed else ""
    return Link(source, target, failure, at, at if measured else None)


@given(st.sets(st.text(min_size=1, max_size=8), max_size=120))
def test_every_node_has_enough_peers_and_the_sample_is_sparse(ids: set[str]) -> None:
    pairs = sampled_pairs(sorted(ids))
    count = Counter(one for pair in pairs for one in pair)
    assert all(one < other for one, other in pairs)
    assert all(count[one] >= min(PEERS, len(ids) - 1) for one in ids)
    if len(ids) <= ALL_PAIRS_UP_TO:
        assert len(pairs) == len(ids) * (len(ids) - 1) // 2
    else:
        assert len(pairs) <= PEERS * len(ids)


def test_a_slow_host_shows_against_several_of_500_and_no_node_is_burdened() -> None:
    pairs = sampled_pairs(names(500))
    count = Counter(one for pair in pairs for one in pair)
    assert min(count.values()) >= PEERS
    assert max(count.values()) <= 4 * PEERS


def test_a_node_that_joins_changes_little_of_the_sample() -> None:
    before, after = sampled_pairs(names(500)), sampled_pairs(names(501))
    assert len({pair for pair in after - before if names(501)[-1] not in pair}) == 0
    assert len(before - after) <= 4 * PEERS


@given(st.integers(2, 40), st.data())
def test_a_round_asks_no_node_for_too_much(count: int, data: st.DataObject) -> None:
    there = hosts(count)
    pairs = sampled_pairs(list(there))
    known = {
        (source, target): link(
            source,
            target,
            failed=data.draw(st.booleans()),
            age_s=data.draw(st.sampled_from([0.0, 20.0, 2 * AGAIN_S, 2 * TRANSFER_AGAIN_S])),
            measured=data.draw(st.booleans()),
        )
        for source, target in sorted(pairs)[:30]
    }
    due = due_probes(there, pairs, known, NOW)
    assert len({(one.source, one.target) for one in due}) == len(due)
    for counts in (Counter(one.source for one in due), Counter(one.target for one in due)):
        assert max(counts.values(), default=0) <= PROBES_AT_ONCE
    measuring = Counter(node for one in due if one.measures for node in (one.source, one.target))
    assert max(measuring.values(), default=0) <= 1
    new = [one for one in due if (one.source, one.target) not in known]
    assert due[: len(new)] == new


@pytest.mark.parametrize(
    ("known", "due"),
    [
        (link("n0000", "n0001", age_s=1.0), None),
        (link("n0000", "n0001", age_s=1.0, measured=False), True),
        (link("n0000", "n0001", age_s=AGAIN_S), False),
        (link("n0000", "n0001", age_s=1.0, failed=True), None),
        (link("n0000", "n0001", age_s=FAILED_AGAIN_S, failed=True), False),
    ],
)
def test_what_is_known_decides_when_a_pair_is_probed_again(known: Link, due: bool | None) -> None:
    back = link("n0001", "n0000")
    found = due_probes(
        hosts(2), [("n0000", "n0001")], {("n0000", "n0001"): known, ("n0001", "n0000"): back}, NOW
    )
    assert found == ([] if due is None else [DueProbe("n0000", "n0001", measures=due)])


def test_hosts_of_one_address_and_agents_that_do_not_listen_are_not_probed() -> None:
    there = {
        "a": ProbeHost("a", "10.0.0.1", listens=True),
        "b": ProbeHost("b", "10.0.0.1", listens=True),
        "c": ProbeHost("c", "10.0.0.2", listens=False),
    }
    found = due_probes(there, sampled_pairs(list(there)), {}, NOW)
    assert {(one.source, one.target) for one in found} == {("c", "a"), ("c", "b")}


def test_one_failing_direction_keeps_two_nodes_apart() -> None:
    apart = apart_of([link("a", "b", failed=True), link("b", "a"), link("a", "c"), link("c", "b")], NOW)
    assert apart.between("a", "b") == apart.between("b", "a") == "a cannot reach b: no answer"
    assert not apart.between("a", "c")
    assert not apart.within(["a", "b"], known=["a", "b"])
    assert apart.within(["c", "a", "b"], known=["a", "c"])


def test_a_node_that_no_peer_reaches_is_apart_from_all() -> None:
    reached = [link("nat", "a"), link("nat", "b"), link("a", "b"), link("b", "a")]
    apart = apart_of([*reached, link("a", "nat", failed=True), link("b", "nat", failed=True)], NOW)
    assert set(apart.alone) == {"nat"}
    assert apart.between("nat", "never-probed")
    assert not apart.between("a", "b")


def test_a_failure_that_nobody_confirms_is_forgotten() -> None:
    assert not apart_of([link("a", "b", failed=True, age_s=BELIEVED_S)], NOW)
    assert apart_of([link("a", "b", failed=True, age_s=BELIEVED_S - 1)], NOW)


@pytest.mark.parametrize(("after_s", "heals"), [(JOB_BELIEVED_S - 1, False), (JOB_BELIEVED_S, True)])
def test_what_a_job_met_outweighs_a_probe_for_a_while(after_s: float, heals: bool) -> None:
    met = Link("a", "b", "a cannot reach b:41000: refused", NOW, None, job_at=NOW)
    now: datetime = NOW + timedelta(seconds=after_s)
    assert (after_probe(met, "", now) == "") is heals
    assert after_probe(met, "another", now) == "another"
    assert after_probe(link("a", "b", failed=True), "", now) == ""
