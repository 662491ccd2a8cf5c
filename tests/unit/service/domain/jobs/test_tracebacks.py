"""Which lines of a rank's last output say what went wrong, and whose output."""

from __future__ import annotations

import pytest

from service.domain.jobs.failures import RankExit, judge
from service.domain.jobs.tracebacks import lost_a_peer, traceback_in

BEGIN = "Traceback (most recent call last):"
OWN = (
    BEGIN,
    '  File "train.py", line 5, in load',
    "    raise ValueError(x)",
    "    ^^^^^",
    "ValueError: no data",
)
PEER = (
    BEGIN,
    '  File "train.py", line 9',
    "    all_reduce(x)",
    "RuntimeError: [gloo] Connection closed by peer [10.0.0.2]",
)


def rank(number: int, *lines: str) -> RankExit:
    return RankExit(
        rank=number, exit_code=1, signal=None, stopped_by_agent=False, completed=False, log_tail=lines
    )


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        (("epoch 1", *OWN), OWN),
        ((*OWN, "W0101 torch is going down", "bye"), OWN),
        (tuple(f"[rank3]: {line}" for line in OWN), OWN),
        ((*PEER, "epoch 2", *OWN), OWN),
        (
            (*OWN, "", "During handling of the above exception, another exception occurred:", "", *PEER),
            (*OWN, "During handling of the above exception, another exception occurred:", *PEER),
        ),
        (("line 1", "line 2"), ()),
        ((BEGIN,), (BEGIN,)),
        ((), ()),
    ],
)
def test_the_traceback_alone_is_found(printed: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert traceback_in(printed) == list(found)


def test_the_cause_is_told_and_not_what_peers_said_of_it() -> None:
    assert (lost_a_peer(PEER), lost_a_peer(OWN), lost_a_peer(("NCCL is up",))) == (True, False, False)
    verdict = judge([rank(0, "epoch 1", *PEER), rank(1, "epoch 1", *OWN), rank(2, *PEER)])
    assert verdict.message.splitlines() == ["rank 1 exited with code 1: ValueError: no data", *OWN]


def test_without_a_cause_of_its_own_the_first_rank_is_told() -> None:
    assert judge([rank(1, *PEER), rank(0, *PEER)]).message.startswith(
        "rank 0 exited with code 1: RuntimeError"
    )
