"""The self-test of `headway doctor --gpu`: real ranks on the CPU, and what it says where there is nothing to test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headway.cli.doctor_selftest import self_test_checks
from headway.contract.views.diagnosis import Level
from headway.selftest.members import Members, TrialFailed

SELF_TEST = (sys.executable, "-m", "headway.selftest")


@pytest.mark.slow
def test_real_ranks_keep_every_promise_on_the_cpu():
    checks = {check.name: check for check in self_test_checks([*SELF_TEST, "--cpu"])}
    assert {name: check.level for name, check in checks.items() if check.level is not Level.OK} == {}
    replicated = [f"replicated: {one}" for one in ("grow", "shrink", "lost rank", "checkpoint", "losses")]
    sharded = [f"sharded: {one}" for one in ("grow", "shrink", "checkpoint", "losses")]
    assert list(checks) == [*replicated, *sharded]


@pytest.mark.slow
def test_a_machine_without_a_gpu_fails_with_a_hint():
    (check,) = self_test_checks(["env", "CUDA_VISIBLE_DEVICES=", *SELF_TEST])
    assert (check.name, check.level) == ("gpus", Level.FAIL)
    assert check.hint


def test_a_self_test_that_cannot_run_is_a_failed_check():
    (check,) = self_test_checks([sys.executable, "-c", "raise SystemExit('no torch')"])
    assert (check.name, check.level) == ("self-test", Level.FAIL)
    assert "no torch" in check.found


def test_a_rank_that_ends_with_an_error_fails_the_trial_with_its_output(tmp_path: Path):
    members = Members(tmp_path, ["headway.selftest.script", "replicated"], gpus=0, env={})
    try:
        with pytest.raises(TrialFailed) as failed:
            members.start(1)
    finally:
        members.kill()
    assert "rank 1.0 ended with 1." in str(failed.value)
    assert "IndexError" in str(failed.value)
