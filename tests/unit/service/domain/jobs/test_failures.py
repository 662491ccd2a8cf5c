"""Meanings of exits, one by one and together."""

from __future__ import annotations

import itertools
import signal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.contract.run_facts import ProgressSource
from headway.contract.runtime import KILLED_FOR_MEMORY, STORAGE_AWAY
from headway.contract.views.jobs import JobProgress, Reason
from service.domain.jobs.failures import (
    AT_ONCE_S,
    Ending,
    RankExit,
    ending_of,
    judge,
    left_unasked,
    was_hung,
    without_progress,
)
from service.domain.jobs.survival import is_loss


def exit_of(rank: int = 0, **fields: Any) -> RankExit:
    values: dict[str, Any] = {
        "exit_code": None,
        "signal": None,
        "stopped_by_agent": False,
        "completed": False,
        **fields,
    }
    return RankExit(rank=rank, **values)


DONE = {"exit_code": 0}
STOPPED = {"exit_code": 143}
KILLED = {"signal": signal.SIGKILL}
ERROR = {"exit_code": 1}
HOPELESS = {"exit_code": 78}
AWAY = {
    "exit_code": 75,
    "start_error": f"The bundle could not be fetched. The service answered 503: {STORAGE_AWAY} (no)",
}
SAMPLES = {
    Ending.DONE: DONE,
    Ending.STOPPED: STOPPED,
    Ending.INFRASTRUCTURE: KILLED,
    Ending.STORAGE: AWAY,
    Ending.USER_ERROR: ERROR,
    Ending.HOPELESS: HOPELESS,
}


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        (DONE, Ending.DONE),
        ({"exit_code": 0, "stopped_by_agent": True}, Ending.STOPPED),
        ({"exit_code": 0, "stopped_by_agent": True, "completed": True}, Ending.DONE),
        ({"signal": signal.SIGABRT, "completed": True}, Ending.DONE),
        ({"signal": signal.SIGSEGV, "completed": True, "stopped_by_agent": True}, Ending.DONE),
        ({"signal": signal.SIGKILL, "completed": True}, Ending.INFRASTRUCTURE),
        ({"signal": signal.SIGABRT}, Ending.INFRASTRUCTURE),
        ({"exit_code": 1, "completed": True}, Ending.USER_ERROR),
        (STOPPED, Ending.STOPPED),
        ({"signal": signal.SIGKILL, "stopped_by_agent": True}, Ending.STOPPED),
        ({"exit_code": 1, "stopped_by_agent": True}, Ending.STOPPED),
        ({"signal": signal.SIGTERM}, Ending.INFRASTRUCTURE),
        ({}, Ending.INFRASTRUCTURE),
        ({"exit_code": 75}, Ending.INFRASTRUCTURE),
        (HOPELESS, Ending.HOPELESS),
        (ERROR, Ending.USER_ERROR),
        ({"exit_code": 255}, Ending.USER_ERROR),
        ({"exit_code": 137}, Ending.INFRASTRUCTURE),
        ({"exit_code": 139}, Ending.INFRASTRUCTURE),
        ({"exit_code": 134, "completed": True}, Ending.DONE),
        ({"exit_code": 137, "stopped_by_agent": True}, Ending.STOPPED),
        ({"exit_code": 130}, Ending.USER_ERROR),
        ({"exit_code": 143, "stopped_by_agent": True}, Ending.STOPPED),
    ],
)
def test_one_rank(fields: dict[str, Any], ending: Ending) -> None:
    assert ending_of(exit_of(**fields)) is ending


exits_of_any_kind = st.builds(
    RankExit,
    rank=st.integers(0, 7),
    exit_code=st.one_of(st.none(), st.sampled_from([0, 1, 2, 75, 78, 143]), st.integers(-1, 256)),
    signal=st.one_of(st.none(), st.sampled_from([1, 6, 9, 11, 15, 35, 64]), st.integers(-1, 200)),
    stopped_by_agent=st.booleans(),
    completed=st.booleans(),
    log_tail=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    start_error=st.one_of(st.none(), st.just("port taken")),
)


@settings(max_examples=30)
@given(st.lists(exits_of_any_kind, max_size=6))
def test_any_exits_have_a_verdict_with_a_sentence(exits: list[RankExit]) -> None:
    verdict = judge(exits)
    assert verdict.message.strip()
    assert verdict.ending in {ending_of(one) for one in exits} or (not exits)
    assert judge(list(reversed(exits))).ending is verdict.ending


@settings(max_examples=30)
@given(st.lists(exits_of_any_kind, min_size=1, max_size=6))
def test_a_generation_is_done_only_when_every_rank_is(exits: list[RankExit]) -> None:
    everyone = all(ending_of(one) is Ending.DONE for one in exits)
    assert (judge(exits).ending is Ending.DONE) is everyone


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(Ending, 2)))
def test_the_root_cause_outweighs_what_follows_from_it(one: Ending, other: Ending) -> None:
    """A killed rank makes its peers fail with errors; a rank that gives up makes them killed."""
    worst_first = [
        Ending.HOPELESS,
        Ending.STORAGE,
        Ending.INFRASTRUCTURE,
        Ending.USER_ERROR,
        Ending.STOPPED,
        Ending.DONE,
    ]
    verdict = judge([exit_of(0, **SAMPLES[one]), exit_of(1, **SAMPLES[other])])
    assert verdict.ending is min(one, other, key=worst_first.index)


def test_start_without_storage_has_its_own_reason_with_the_error_of_the_storage() -> None:
    verdict = judge([exit_of(0, **AWAY), exit_of(1, **STOPPED)])
    assert (verdict.ending, verdict.reason) == (Ending.STORAGE, Reason.STORAGE_UNAVAILABLE)
    assert verdict.message == f"could not be started: {AWAY['start_error']}"


def test_rank_that_leaves_because_storage_does_not_answer_has_the_same_reason() -> None:
    said = f"the checkpoints cannot be read: {STORAGE_AWAY} (the list of checkpoints: 503)"
    line = f"headway: {said}; this process exits with a request for a restart"
    peer = "headway: the checkpoints cannot be read: another rank says why; this process exits with a request for a restart"
    exits = [exit_of(0, exit_code=75, log_tail=(peer,)), exit_of(1, exit_code=75, log_tail=("x", line))]
    verdict = judge(exits)
    assert (verdict.ending, verdict.reason) == (Ending.STORAGE, Reason.STORAGE_UNAVAILABLE)
    assert verdict.message == f"rank 1 could not go on: {said}"


@pytest.mark.parametrize(
    "said",
    [
        "the checkpoints cannot be read: PermissionDeniedError: 403 Forbidden; check HEADWAY_STORAGE_URL",
        "the checkpoints cannot be read: NoSuchBucket 404",
    ],
)
def test_storage_that_refuses_counts_as_a_failure_and_is_named(said: str) -> None:
    line = f"headway: {said}; this process exits with a request for a restart"
    verdict = judge([exit_of(0, exit_code=75, log_tail=(line,))])
    assert (verdict.ending, verdict.reason) == (Ending.INFRASTRUCTURE, Reason.RETRY_REQUESTED)
    assert said in verdict.message


def test_script_that_only_prints_about_storage_has_an_error_of_its_own() -> None:
    verdict = judge([exit_of(0, exit_code=1, log_tail=(f"OSError: {STORAGE_AWAY}",))])
    assert (verdict.ending, verdict.reason) == (Ending.USER_ERROR, Reason.USER_ERROR)


def test_a_killed_rank_outweighs_the_errors_of_all_its_peers() -> None:
    peers = [exit_of(rank, **ERROR, log_tail=("connection reset by peer",)) for rank in (0, 1, 3)]
    verdict = judge([*peers, exit_of(2, **KILLED)])
    assert (verdict.ending, verdict.reason) == (Ending.INFRASTRUCTURE, Reason.RANK_LOST)
    assert verdict.message == "rank 2 was killed by SIGKILL"


@pytest.mark.parametrize(
    ("exits", "unasked"),
    [
        ([], False),
        ([STOPPED], True),
        ([STOPPED, {"signal": signal.SIGKILL, "stopped_by_agent": True}], True),
        ([STOPPED, {"exit_code": 143, "stopped_by_agent": True}], False),
        ([DONE, {"signal": signal.SIGTERM, "stopped_by_agent": True}], False),
    ],
)
def test_code_143_counts_as_a_stop_only_when_a_rank_was_asked(
    exits: list[dict[str, Any]], *, unasked: bool
) -> None:
    assert left_unasked([exit_of(rank, **fields) for rank, fields in enumerate(exits)]) is unasked


def test_no_exits_mean_that_nothing_had_started() -> None:
    verdict = judge([])
    assert (verdict.ending, verdict.reason) == (Ending.STOPPED, Reason.PREEMPTED)


@pytest.mark.parametrize(
    ("fields", "reason", "says"),
    [
        (DONE, Reason.COMPLETED, "every rank finished"),
        (STOPPED, Reason.PREEMPTED, "stopped on request"),
        (KILLED, Reason.RANK_LOST, "rank 3 was killed by SIGKILL"),
        ({"signal": 35}, Reason.RANK_LOST, "rank 3 was killed by signal 35"),
        ({}, Reason.RANK_LOST, "rank 3 ended; its exit status is unknown"),
        ({"exit_code": 75}, Reason.RETRY_REQUESTED, "rank 3 asked to be started again"),
        (ERROR, Reason.USER_ERROR, "rank 3 exited with code 1, without output"),
        (HOPELESS, Reason.USER_ERROR, "rank 3 exited with code 78"),
        ({**ERROR, "log_tail": ("a", " ", "b")}, Reason.USER_ERROR, "its last lines:\na\nb"),
        ({"exit_code": 75, "start_error": "port taken"}, Reason.START_FAILED, "started: port taken"),
        ({"exit_code": 78, "start_error": "no such file"}, Reason.START_FAILED, "started: no such file"),
    ],
)
def test_reasons_and_sentences(fields: dict[str, Any], reason: Reason, says: str) -> None:
    verdict = judge([exit_of(3, **fields)])
    assert verdict.reason is reason
    assert says in verdict.message


PEER_TAIL = (
    "Traceback (most recent call last):",
    "RuntimeError: [gloo] Connection closed by peer",
)
CUDA_TAIL = (
    "Traceback (most recent call last):",
    "torch.OutOfMemoryError: CUDA out of memory. ProbeOutcome to",
)


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        ({**ERROR, "log_tail": CUDA_TAIL}, Ending.USER_ERROR),
        ({**ERROR, "log_tail": ("MemoryError",)}, Ending.USER_ERROR),
        (
            {**ERROR, "log_tail": ("RuntimeError: DefaultCPUAllocator: can't allocate memory",)},
            Ending.USER_ERROR,
        ),
        ({**KILLED, "log_tail": (f"[headway] {KILLED_FOR_MEMORY}.",)}, Ending.INFRASTRUCTURE),
    ],
)
def test_a_lack_of_memory_is_a_reason_of_its_own(fields: dict[str, Any], ending: Ending) -> None:
    verdict = judge([exit_of(0, **fields)])
    assert (verdict.ending, verdict.reason) == (ending, Reason.OUT_OF_MEMORY)
    assert "memory" in verdict.message.lower()


def test_the_rank_that_ran_out_of_memory_is_named_before_those_that_lost_it() -> None:
    peers = [exit_of(rank, **ERROR, log_tail=("connection reset",)) for rank in (0, 1)]
    verdict = judge([*peers, exit_of(2, **ERROR, log_tail=CUDA_TAIL)])
    assert verdict.reason is Reason.OUT_OF_MEMORY
    assert verdict.message.startswith("rank 2 ")


@pytest.mark.parametrize(
    "line", ["I am not out of memory", "MyMemoryErrorHandler", "KeyError: 'MemoryError'"]
)
def test_talk_of_memory_is_no_lack_of_it(line: str) -> None:
    assert judge([exit_of(0, **ERROR, log_tail=(line,))]).reason is Reason.USER_ERROR


@pytest.mark.parametrize("ending", Ending)
def test_ranks_that_were_killed_since_they_hung_count_as_infrastructure(ending: Ending) -> None:
    before = judge([exit_of(0, **SAMPLES[ending])])
    after = was_hung(before, "no step for 600 s")
    if ending in {Ending.DONE, Ending.HOPELESS}:
        assert after == before
    else:
        assert (after.ending, after.reason) == (Ending.INFRASTRUCTURE, Reason.HUNG)
        assert after.message == "no step for 600 s"


def test_the_first_of_several_failed_ranks_is_named() -> None:
    assert "rank 1 " in judge([exit_of(2, **ERROR), exit_of(1, **ERROR), exit_of(0, **DONE)]).message


def test_a_program_that_was_killed_behind_a_shell_is_a_loss_like_any_other() -> None:
    behind_shell, bare = exit_of(exit_code=137), exit_of(signal=signal.SIGKILL)
    assert is_loss(behind_shell)
    assert is_loss(bare)
    assert not is_loss(exit_of(exit_code=137, completed=True))
    assert judge([behind_shell]).reason is judge([bare]).reason is Reason.RANK_LOST
    assert "was killed by SIGKILL" in judge([behind_shell]).message
    hungry = exit_of(exit_code=137, log_tail=(KILLED_FOR_MEMORY,))
    assert judge([hungry]).reason is Reason.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("progress", "ran_s", "flagged"),
    [
        (JobProgress(), 1.0, True),
        (JobProgress(), AT_ONCE_S, False),
        (JobProgress(source=ProgressSource.LIBRARY), 3600.0, True),
        (JobProgress(source=ProgressSource.LIBRARY, samples=64), 1.0, False),
        (JobProgress(source=ProgressSource.SCRIPT, first_samples=0), 1.0, False),
        (JobProgress(samples=64), 1.0, False),
    ],
)
def test_who_ends_without_a_step_is_flagged(progress: JobProgress, ran_s: float, *, flagged: bool) -> None:
    exits = [
        exit_of(0, exit_code=0, log_tail=("Unable to locate sufficient 2 gpus",)),
        exit_of(1, exit_code=0),
    ]
    verdict = without_progress(judge(exits), exits, progress, ran_s)
    assert verdict.ending is Ending.DONE
    assert verdict.reason is (Reason.NO_PROGRESS if flagged else Reason.COMPLETED)
    assert ("Unable to locate sufficient 2 gpus" in verdict.message) is flagged
    failed = judge([exit_of(exit_code=1)])
    assert without_progress(failed, exits, progress, ran_s) == failed


@pytest.mark.parametrize(
    ("exits", "named"),
    [
        ([{**ERROR, "log_tail": ("ValueError",)}, ERROR], 0),
        ([{**ERROR, "log_tail": PEER_TAIL}, ERROR], 1),
        ([{**ERROR, "log_tail": PEER_TAIL}, ERROR, {**ERROR, "log_tail": CUDA_TAIL}], 2),
        ([{**ERROR, "log_tail": PEER_TAIL}, {**ERROR, "log_tail": PEER_TAIL}], 0),
        ([DONE, ERROR, KILLED, ERROR], 2),
        ([KILLED, {**KILLED, "log_tail": (KILLED_FOR_MEMORY,)}], 1),
        ([KILLED, KILLED, HOPELESS], 2),
    ],
    ids=["first", "not a peer's", "memory", "peers alone", "kill", "kill for memory", "hopeless"],
)
def test_the_rank_that_is_likely_the_cause_is_named(exits: list[dict[str, Any]], named: int) -> None:
    found = [exit_of(rank, **fields) for rank, fields in enumerate(exits)]
    for order in (found, found[::-1]):
        assert judge(order).message.startswith(f"rank {named} ")


@pytest.mark.parametrize(("ran_s", "shown"), [(0.0, "less than 1 s"), (AT_ONCE_S - 0.1, "10 s")])
def test_a_script_that_ends_at_once_shows_the_output_of_its_first_rank(ran_s: float, shown: str) -> None:
    exits = [exit_of(1, **DONE, log_tail=("second",)), exit_of(0, **DONE, log_tail=("first",))]
    verdict = without_progress(judge(exits), exits, JobProgress(), ran_s)
    assert verdict.reason is Reason.NO_PROGRESS
    assert (
        verdict.message
        == f"every rank exited with code 0 after {shown}, and no step was reported; its last lines:\nfirst"
    )


def test_an_end_without_exits_has_no_output_to_show() -> None:
    done = judge([exit_of(0, **DONE)])
    assert (
        without_progress(done, [], JobProgress(), 1.0).message
        == "every rank exited with code 0 after 1 s, and no step was reported, without output"
    )


@pytest.mark.parametrize(
    ("fields", "hinted"),
    [
        (
            {"exit_code": 2, "log_tail": ("python: can't open file '/j/train.py': [Errno 2] No such file",)},
            True,
        ),
        ({"exit_code": 1, "log_tail": ("python: No module named pkg",)}, True),
        ({"exit_code": 2, "log_tail": ("sh: 0: cannot open train.sh: No such file",)}, True),
        ({"exit_code": 127, "log_tail": ("/bin/sh: 1: ./train.sh: not found",)}, True),
        (
            {
                "exit_code": 1,
                "log_tail": ("FileNotFoundError: [Errno 2] No such file or directory: 'a.csv'",),
            },
            True,
        ),
        (
            {
                "exit_code": 1,
                "log_tail": ("FileNotFoundError: [Errno 2] No such file or directory: '/a.csv'",),
            },
            False,
        ),
        ({"exit_code": 78, "start_error": "train.sh is not in the working folder"}, True),
        ({"exit_code": 1, "log_tail": ("ValueError: 3",)}, False),
        ({"exit_code": 0}, False),
    ],
)
def test_a_missing_script_of_a_job_without_a_folder_has_a_remedy(
    fields: dict[str, Any], *, hinted: bool
) -> None:
    remedy = "no folder was uploaded with the job: name the folder of the script in `workdir`"
    first = judge([exit_of(0, **fields)], uploaded=False).message.splitlines()[0]
    assert (remedy in first) is hinted
    assert remedy not in judge([exit_of(0, **fields)], uploaded=True).message


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'data/tiny/train.bin'",
            "data/tiny/train.bin",
        ),
        ("[rank0]: FileNotFoundError: [Errno 2] No such file or directory: './a.csv'", "a.csv"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/s/runs/j1/work/data/x.bin'",
            "data/x.bin",
        ),
        ("FileNotFoundError: data/x.npy not found.", "data/x.npy"),
        (
            "OSError: Unable to synchronously open file (unable to open file: name = 'x.h5', errno = 2, error message = 'No such "
            "file or directory', flags = 0, o_flags = 0)",
            "x.h5",
        ),
        ("cat: data/x.txt: No such file or directory", "data/x.txt"),
        ("ls: cannot access 'data/x.txt': No such file or directory", "data/x.txt"),
        (
            "python: can't open file '/s/runs/j1/work/train.py': [Errno 2] No such file or directory",
            "train.py",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x.bin'", None),
        ("FileNotFoundError: [Errno 2] No such file or directory: '../x.bin'", None),
        ("FileNotFoundError: s3://bucket/x not found.", None),
        ("ValueError: 3", None),
    ],
)
def test_a_file_missing_in_an_uploaded_folder_has_a_remedy(line: str, path: str | None) -> None:
    first = judge([exit_of(0, exit_code=1, log_tail=("Traceback", line))]).message.splitlines()[0]
    assert ("kept it from the upload" in first) is (path is not None)
    if path is not None:
        assert f"if {path} is in the submitted folder" in first
        assert f"write !{path} into .headwayignore" in first


def test_a_file_missing_before_many_lines_of_output_is_no_cause() -> None:
    lines = ("cat: a.txt: No such file or directory", *(f"step {number}" for number in range(9)))
    assert "kept it" not in judge([exit_of(0, exit_code=1, log_tail=lines)]).message


def test_retry_after_a_lost_peer_has_the_reason_that_the_library_gave() -> None:
    line = "headway: a peer was lost, and the script counts batches; this process exits with a request for a restart"
    verdict = judge([exit_of(1, exit_code=75, log_tail=("step 7", line))])
    assert verdict.reason is Reason.RETRY_REQUESTED
    assert (
        verdict.message == "rank 1 asked to be started again: a peer was lost, and the script counts batches"
    )
