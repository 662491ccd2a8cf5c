"""Hosts with a slow link, from the bandwidths between pairs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.nodes.slow_links import LinkRate, judged, slow_links
from tests.unit.service.builders import NOW

USUAL = 1.25e8
"""Bytes per second of 1,000 Mbit/s."""


def rates(hosts: int, minute: int = 0, **sends: float) -> list[LinkRate]:
    """All pairs of hosts, measured in this minute; each sends at the usual rate or at its own."""
    names = [f"h{number}" for number in range(hosts)]
    at = NOW + timedelta(minutes=minute)
    return [
        LinkRate(one, other, sends.get(one, USUAL), at) for one in names for other in names if one != other
    ]


def kinds(hosts: int) -> dict[str, str]:
    return {f"h{number}": "a100" for number in range(hosts)}


def test_a_host_that_sends_at_a_tenth_is_found_and_described() -> None:
    found = slow_links(rates(3, h1=USUAL / 10), kinds(3))
    assert list(found) == ["h1"]
    assert found["h1"].sentence("host-b") == ("host-b sends at 100 Mbit/s, its peers do at 1,000 with others")


def test_a_host_that_receives_at_a_tenth_is_found() -> None:
    turned = [replace(one, sender=one.receiver, receiver=one.sender) for one in rates(3, h1=USUAL / 10)]
    found = slow_links(turned, kinds(3))
    assert [(name, one.sends) for name, one in found.items()] == [("h1", False)]


@given(
    st.integers(4, 8).flatmap(
        lambda hosts: st.tuples(st.just(hosts), st.sets(st.integers(0, hosts - 1), max_size=hosts - 3))
    ),
    st.floats(0.01, 0.2),
    st.randoms(use_true_random=False),
)
def test_exactly_the_slow_hosts_are_found_where_three_are_well(
    cluster: tuple[int, set[int]], share: float, random: object
) -> None:
    """Rates of hosts that are well vary by a tenth."""
    hosts, slow = cluster
    noisy = [
        replace(one, bytes_per_s=one.bytes_per_s * random.uniform(0.9, 1.1))  # type: ignore[attr-defined]
        for one in rates(hosts, **{f"h{number}": USUAL * share for number in slow})
    ]
    assert set(slow_links(noisy, kinds(hosts))) == {f"h{number}" for number in slow}


@given(st.lists(st.floats(0.3, 1.0), min_size=42, max_size=42))
def test_no_host_is_slow_while_all_rates_are_within_the_share(shares: list[float]) -> None:
    links = [replace(one, bytes_per_s=share * USUAL) for one, share in zip(rates(7), shares, strict=True)]
    assert slow_links(links, kinds(7)) == {}


def test_one_slow_pair_accuses_neither_host() -> None:
    links = [one for one in rates(4) if {one.sender, one.receiver} != {"h0", "h1"}]
    pair = [LinkRate("h0", "h1", USUAL / 10, NOW), LinkRate("h1", "h0", USUAL / 10, NOW)]
    assert slow_links([*links, *pair], kinds(4)) == {}


def test_hosts_of_another_kind_and_two_hosts_alone_are_not_compared() -> None:
    links = rates(4, h3=USUAL / 100)
    assert slow_links(links, {**kinds(3), "h3": "v100"}) == {}
    assert slow_links(rates(2, h1=USUAL / 100), kinds(2)) == {}


@pytest.mark.parametrize(("share", "stays"), [(0.3, True), (0.49, True), (0.51, False)])
def test_a_mark_ends_only_at_half_of_the_usual_rate(share: float, stays: bool) -> None:
    links = rates(3, h1=USUAL * share)
    assert slow_links(links, kinds(3)) == {}
    assert (set(slow_links(links, kinds(3), {"h1"})) == {"h1"}) is stays


def test_a_host_is_doubted_first_and_slow_once_all_its_later_rates_say_so() -> None:
    slow = {"h1": USUAL / 10}
    doubted = {"h1": NOW + timedelta(seconds=1)}
    first = judged(rates(4, **slow), kinds(4), (), {})
    assert (dict(first.slow), first.doubted) == ({}, {"h1"})
    waits = judged(rates(4, **slow), kinds(4), (), doubted)
    assert (dict(waits.slow), waits.doubted) == ({}, {"h1"})
    again = judged(rates(4, 1, **slow), kinds(4), (), doubted)
    assert (list(again.slow), again.doubted) == (["h1"], frozenset())


def test_a_host_that_was_busy_for_a_moment_is_never_slow() -> None:
    doubted = {"h1": NOW + timedelta(seconds=1)}
    later = judged(rates(4, 1), kinds(4), (), doubted)
    assert (dict(later.slow), later.doubted) == ({}, frozenset())


def test_one_later_measurement_confirms_nothing() -> None:
    slow = {"h1": USUAL / 10}
    doubted = {"h1": NOW + timedelta(seconds=1)}
    partly = [
        after if {before.sender, before.receiver} == {"h0", "h1"} else before
        for before, after in zip(rates(4, **slow), rates(4, 1, **slow), strict=True)
    ]
    found = judged(partly, kinds(4), (), doubted)
    assert (dict(found.slow), found.doubted) == ({}, {"h1"})


def test_a_mark_does_not_end_because_a_peer_is_in_doubt() -> None:
    slow = {"h1": USUAL / 10, "h2": USUAL / 10}
    found = judged(rates(4, **slow), kinds(4), {"h1"}, {"h2": NOW + timedelta(seconds=1)})
    assert (list(found.slow), found.doubted) == (["h1"], {"h2"})
