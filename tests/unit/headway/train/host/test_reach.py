"""Sentences about hosts that cannot be reached."""

from __future__ import annotations

import errno
import socket

import pytest

from headway.train.host.reach import ReachPatience, reach_failure

HERE = socket.gethostname()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Gloo connectFullMesh failed with [/x/gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection "
            "refused, remote=[127.0.1.1]:26003$0",
            f"{HERE} cannot reach 127.0.1.1:26003: Connection refused",
        ),
        (
            "[/x/pair.cc:538] Connection closed by peer [10.0.0.2]:18722\nmore",
            "[/x/pair.cc:538] Connection closed by peer [10.0.0.2]:18722",
        ),
        ("", ""),
    ],
)
def test_errors_of_torch(message: str, expected: str) -> None:
    assert reach_failure(message) == expected


def test_the_reason_is_told() -> None:
    patience = ReachPatience("10.0.0.2:41000")
    assert patience.failure(TimeoutError("timed out")) == f"{HERE} cannot reach 10.0.0.2:41000: no answer"
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    assert patience.failure(refused) == f"{HERE} cannot reach 10.0.0.2:41000: connection refused"


def test_a_host_that_refuses_is_not_cut_off_and_a_wait_is_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    patience = ReachPatience("10.0.0.2:41000")
    for error in (
        TimeoutError(),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        TimeoutError(),
    ):
        assert not patience.is_cut_off(error)
        patience.warn(error)
    assert capsys.readouterr().err.count("\n") == 1
