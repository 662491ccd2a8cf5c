"""Hosts with a slow link, from the bandwidths between pairs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.nodes.slow_links import LinkRate, slow_links

USUAL = 1.25e8
"""Bytes per second of 1,000 Mbit/s."""


def rates(hosts: int, **sends: float) -> list[LinkRate]:
    """All pairs of hosts; each sends at the usual rate or at its own."""
    names = [f"h{number}" for number in range(hosts)]
    return [LinkRate(one, other, sends.get(one, USUAL)) for one in names for other in names if one != other]


def kinds(hosts: int) -> dict[str, str]:
    return {f"h{number}": "a100" for number in range(hosts)}


def test_a_host_that_sends_at_a_tenth_is_found_and_described() -> None:
    found = slow_links(rates(3, h1=USUAL / 10), kinds(3))
    assert list(found) == ["h1"]
    assert found["h1"].sentence("host-b") == ("host-b sends at 100 Mbit/s, its peers do at 1,000 with others")


def test_a_host_that_receives_at_a_tenth_is_found() -> None:
    turned = [LinkRate(one.receiver, one.sender, one.bytes_per_s) for one in rates(3, h1=USUAL / 10)]
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
        LinkRate(one.sender, one.receiver, one.bytes_per_s * random.uniform(0.9, 1.1))  # type: ignore[attr-defined]
        for one in rates(hosts, **{f"h{number}": USUAL * share for number in slow})
    ]
    assert set(slow_links(noisy, kinds(hosts))) == {f"h{number}" for number in slow}


@given(st.lists(st.floats(0.3, 1.0), min_size=42, max_size=42))
def test_no_host_is_slow_while_all_rates_are_within_the_share(shares: list[float]) -> None:
    links = [
        LinkRate(one.sender, one.receiver, share * USUAL) for one, share in zip(rates(7), shares, strict=True)
    ]
    assert slow_links(links, kinds(7)) == {}


def test_one_slow_pair_accuses_neither_host() -> None:
    links = [one for one in rates(4) if {one.sender, one.receiver} != {"h0", "h1"}]
    pair = [LinkRate("h0", "h1", USUAL / 10), LinkRate("h1", "h0", USUAL / 10)]
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
