"""Validity of a node's tokens, over all ways in which they may be renewed, lost and used."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.identity.credentials import UNDER_WAY, NodeTokens, TokenState

NOW = datetime(2026, 11, 22, tzinfo=UTC)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["renew", "use"]))))
def test_at_most_two_tokens_work_and_one_after_the_newest_was_used(steps: list[tuple[int, str]]) -> None:
    """Anybody with any token that was ever made renews or works; `made` are all of them, the oldest first."""
    made = ["token-0"]
    tokens = NodeTokens(newest_sha256="token-0", previous_sha256=None, used_since=None)
    now = NOW
    for which, what in steps:
        now += timedelta(minutes=1)
        shown = made[which % len(made)]
        if not tokens.state_of(shown, now).valid:
            continue
        if what == "renew":
            made.append(f"token-{len(made)}")
            tokens = NodeTokens(newest_sha256=made[-1], previous_sha256=shown, used_since=None)
        elif shown == tokens.newest_sha256 and tokens.used_since is None:
            tokens = NodeTokens(newest_sha256=shown, previous_sha256=tokens.previous_sha256, used_since=now)
        valid = [one for one in made if tokens.state_of(one, now).valid]
        assert tokens.newest_sha256 in valid
        assert len(valid) <= (2 if tokens.used_since is None else 1)
        assert tokens.state_of("stranger", now) is TokenState.UNKNOWN


@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_a_replaced_token_is_cause_for_alarm_once_no_request_can_be_under_way_with_it(late_s: int) -> None:
    tokens = NodeTokens(newest_sha256="new", previous_sha256="old", used_since=NOW)
    standing = tokens.state_of("old", NOW + timedelta(seconds=late_s))
    assert standing is (TokenState.OLD if late_s >= UNDER_WAY.total_seconds() else TokenState.REPLACED)
    assert not standing.valid


def test_a_clock_that_was_set_back_makes_no_token_valid() -> None:
    tokens = NodeTokens(newest_sha256="new", previous_sha256="old", used_since=NOW)
    assert not tokens.state_of("old", NOW - timedelta(days=1)).valid


@pytest.mark.parametrize(
    ("shown", "previous", "used_s", "state"),
    [
        ("new", None, None, TokenState.CURRENT),
        ("new", "old", None, TokenState.CURRENT),
        ("new", "old", 0, TokenState.CURRENT),
        ("old", "old", None, TokenState.PREVIOUS),
        ("old", "old", 0, TokenState.REPLACED),
        ("old", "old", -59, TokenState.REPLACED),
        ("old", "old", -60, TokenState.OLD),
        ("old", "old", -86_400, TokenState.OLD),
        ("old", None, None, TokenState.UNKNOWN),
        ("older", "old", None, TokenState.UNKNOWN),
        ("", "old", None, TokenState.UNKNOWN),
    ],
)
def test_the_state_of_a_token(
    shown: str, previous: str | None, used_s: int | None, state: TokenState
) -> None:
    """`used_s` is the time of the first use of the newest token, relative to now."""
    used = None if used_s is None else NOW + timedelta(seconds=used_s)
    tokens = NodeTokens(newest_sha256="new", previous_sha256=previous, used_since=used)
    assert tokens.state_of(shown, NOW) is state
    assert state.valid is (state in {TokenState.CURRENT, TokenState.PREVIOUS})
