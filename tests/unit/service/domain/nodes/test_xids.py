"""Grades of the Xids, the fault numbers of NVIDIA's driver, by what NVIDIA's catalogue asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.health import FaultGrade
from service.domain.nodes.xids import XIDS, xid

FATAL, SUSPICIOUS, JOB_ERROR = FaultGrade.FATAL, FaultGrade.SUSPICIOUS, FaultGrade.JOB_ERROR

# docs.nvidia.com/deploy/xid-errors: the immediate action of each.
RESTART_OR_CHECK_THE_APPLICATION = [11, 13, 31, 39, 43, 45, 68, 69]
RESET_REBOOT_OR_REPAIR = [46, 48, 54, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 157, 158]
MAY_PASS = [8, 32, 38, 61, 63, 92, 94, 109, 121]


@pytest.mark.parametrize(
    ("codes", "grade"),
    [(RESTART_OR_CHECK_THE_APPLICATION, JOB_ERROR), (MAY_PASS, SUSPICIOUS), (RESET_REBOOT_OR_REPAIR, FATAL)],
)
def test_the_grade_follows_the_action_of_the_catalogue(codes: list[int], grade: FaultGrade) -> None:
    assert {code: xid(code).grade for code in codes} == dict.fromkeys(codes, grade)


def test_every_xid_of_the_table_has_a_grade_of_the_catalogue() -> None:
    assert sorted([*RESTART_OR_CHECK_THE_APPLICATION, *MAY_PASS, *RESET_REBOOT_OR_REPAIR]) == sorted(XIDS)


@given(st.none() | st.integers().filter(lambda code: code not in XIDS))
def test_an_unknown_xid_is_suspicious(code: int | None) -> None:
    assert xid(code).grade is SUSPICIOUS
    assert xid(code) not in XIDS.values(), "users see that this version does not know it"


def test_every_xid_has_a_description_of_its_own() -> None:
    descriptions = [one.what for one in XIDS.values()]
    assert all(one and one == one.strip() and not one.endswith(".") for one in descriptions)
    assert len(set(descriptions)) == len(descriptions)


@pytest.mark.parametrize("code", RESET_REBOOT_OR_REPAIR)
def test_a_fatal_fault_that_a_reset_mends_says_so(code: int) -> None:
    """Those without it need a cable, a repair or another device."""
    words = xid(code).what
    needs_hands = code in {54, 64, 74, 143, 157}
    assert ("reset" in words or "reboot" in words) is not needs_hands
