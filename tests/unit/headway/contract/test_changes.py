"""The stop file, and the reasons of stops and changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.changes import (
    NO_REASON,
    ChangeKind,
    ChangeReason,
    StopNotice,
    reason_of,
    stop_from_json,
    stop_to_json,
)

SECONDS = st.floats(0, 1e6)
REASONS = st.builds(ChangeReason, st.sampled_from(ChangeKind), st.text(max_size=40))


@given(st.builds(StopNotice, grace_s=SECONDS, kill_at_s=st.none() | SECONDS, why=REASONS))
def test_ranks_read_the_notice_that_the_agent_writes(notice: StopNotice) -> None:
    assert stop_from_json(stop_to_json(notice)) == notice


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"grace_s": -1}', '{"grace_s": "6"}', '{"grace_s": NaN}'])
def test_another_text_announces_nothing(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        stop_from_json(text)


def test_a_notice_of_an_older_agent_has_a_grace_period_and_no_reason() -> None:
    assert stop_from_json('{"grace_s": 6}') == StopNotice(grace_s=6.0)


def test_a_kind_of_a_newer_version_is_another_reason() -> None:
    assert reason_of({"kind": "eclipse", "reason": "it is dark"}) == ChangeReason(
        ChangeKind.OTHER, "it is dark"
    )
    assert reason_of({"kind": 3, "reason": None}) == reason_of(None) == NO_REASON


@given(grace_s=SECONDS, noticed_s=SECONDS, after_s=st.floats(-10, 1e7))
def test_the_time_left_ends_with_the_kill_and_never_exceeds_the_grace_period(
    grace_s: float, noticed_s: float, after_s: float
) -> None:
    notice = stop_from_json(json.dumps({"grace_s": grace_s, "kill_at_s": noticed_s + grace_s}))
    assert notice.left_s(noticed_s + after_s) == pytest.approx(
        min(max(grace_s - after_s, 0.0), grace_s), abs=1e-3
    )
