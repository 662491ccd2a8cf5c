"""Which lines of a rank's last output say what went wrong, and whose output."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.runtime import EXIT_RETRY
from headway.contract.views.jobs import Reason
from service.domain.jobs.failures import Ending, RankExit, judge
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


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("RuntimeError: [gloo] Connection closed by peer", True),
        ("torch.distributed.DistBackendError: NCCL error", True),
        ("torch.distributed.DistNetworkError: The client socket has failed", True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", True),
        ("BrokenPipeError: [Errno 32] Broken pipe", True),
        ("RuntimeError: Socket Timeout", True),
        ("RuntimeError: store->get('0:1') timed out", True),
        ("RuntimeError: peer 3 is gone", True),
        ("headway.PeersLost: host-a cannot reach 10.1.0.2:41000: no answer", True),
        ("ValueError: gloomy data", False),
        ("KeyError: 'connection'", False),
        ("RuntimeError: CUDA error: device-side assert", False),
    ],
)
def test_which_exceptions_say_that_a_peer_is_lost(line: str, *, lost: bool) -> None:
    assert lost_a_peer((*PEER[:-1], line)) is lost
    assert lost_a_peer(("epoch 1", line)) is False, "only in a traceback"


APART = (*PEER[:-1], "headway.PeersLost: host-a cannot reach 10.1.0.2:41000: no answer")


def test_ranks_that_cannot_reach_each_other_are_no_error_of_the_script() -> None:
    stopped = replace(rank(1), exit_code=143, stopped_by_agent=True)
    verdict = judge([rank(0, *APART[2:]), stopped])  # of a long traceback, the end is known
    assert (verdict.ending, verdict.reason) == (Ending.INFRASTRUCTURE, Reason.UNREACHABLE)
    assert verdict.message == "host-a cannot reach 10.1.0.2:41000: no answer"


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (rank(1, *OWN), Reason.USER_ERROR),
        (replace(rank(1), exit_code=None, signal=9), Reason.RANK_LOST),
        (replace(rank(1), exit_code=0), Reason.USER_ERROR),
    ],
    ids=["an error of its own", "killed", "done"],
)
def test_another_cause_outweighs_that_peers_cannot_be_reached(other: RankExit, reason: Reason) -> None:
    assert judge([rank(0, *APART), other]).reason is reason


def test_ranks_that_differ_are_judged_by_what_they_say() -> None:
    said = ("epoch 1", "headway: REPLICAS_DIFFER: 1.bias differs on rank 1")
    differ = replace(rank(0, *said), exit_code=EXIT_RETRY)
    killed = replace(rank(1), exit_code=None, signal=9)
    for exits in ([differ], [killed, differ]):
        verdict = judge(exits)
        assert (verdict.ending, verdict.reason) == (Ending.INFRASTRUCTURE, Reason.REPLICAS_DIFFER)
        assert verdict.message == "the ranks differ: 1.bias differs on rank 1"
    assert judge([rank(0, *said)]).reason is Reason.USER_ERROR, "a script may print the line"
    assert judge([replace(differ, log_tail=("epoch 1",))]).reason is Reason.RETRY_REQUESTED


LEFT = "headway: a peer was lost before the first step: Connection closed by peer; this process exits with a request for a restart"


@pytest.mark.parametrize(
    ("own", "left", "reason", "said"),
    [
        (rank(0, *OWN), LEFT, Reason.USER_ERROR, "rank 0 exited with code 1"),
        (rank(0, *PEER), LEFT, Reason.RETRY_REQUESTED, "rank 1 asked to be started again"),
        (replace(rank(0), exit_code=None, signal=9), LEFT, Reason.RANK_LOST, "rank 0 was killed"),
        (rank(0, *OWN), "wants another try", Reason.RETRY_REQUESTED, "rank 1 asked to be started again"),
    ],
    ids=["an error of its own", "an error by a lost peer", "killed", "a retry that the script asked for"],
)
def test_a_rank_that_left_for_a_lost_peer_is_not_the_cause_where_the_peer_ended_by_itself(
    own: RankExit, left: str, reason: Reason, said: str
) -> None:
    verdict = judge([own, replace(rank(1, left), exit_code=EXIT_RETRY)])
    assert verdict.reason is reason
    assert verdict.message.startswith(said)


def test_the_whole_chain_of_exceptions_is_found() -> None:
    during = ("", "During handling of the above exception, another exception occurred:", "")
    cause = ("", "The above exception was the direct cause of the following exception:", "")
    printed = ("epoch 1", *OWN, *during, *OWN, *cause, *PEER, "bye")
    found = traceback_in(printed)
    assert found.count(BEGIN) == 3
    assert (found[0], found[-1]) == (BEGIN, PEER[-1])
    assert "epoch 1" not in found


def test_the_prefix_of_a_rank_is_removed_from_every_line() -> None:
    printed = [f"[rank12]: {line}" for line in (*OWN, "", *PEER)]
    assert traceback_in(printed) == list(PEER)
    assert traceback_in([f"[rankX]: {line}" for line in OWN]) == []


@settings(max_examples=50)
@given(st.lists(st.sampled_from([*OWN, *PEER, "", "text", "  indented"]), max_size=20))
def test_a_traceback_is_a_part_of_the_output_from_its_head_on(lines: list[str]) -> None:
    found = traceback_in(lines)
    assert bool(found) is (BEGIN in lines)
    assert all(line.strip() for line in found)
    if found:
        assert found[0] == BEGIN
        assert len(found) <= len(lines)
        assert set(found) <= set(lines)
