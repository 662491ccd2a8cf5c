"""`headway exec` behind the real service: the command line, the agent, its launcher and a rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from headway.client.client import Client
from headway.contract.executions import ExecutionOutcome, ExecutionView
from headway.contract.runtime import MEMBERSHIP_VARIABLES
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from headway.http import ApiError
from tests.e2e.conftest import PATIENCE_S, Cluster, PatientJob

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def job(cluster: Cluster, name: str) -> str:
    """Name of a job with one rank that sleeps, which runs."""
    run = "sleep 600"
    spec = {"name": name, "run": run, "env": {"COLOUR": "teal"}, "elastic": {"min": 1, "max": 1}}
    cluster.client.submit(JobSpec.model_validate(spec))
    cluster.until(lambda: cluster.client.job(name).state is JobState.RUNNING, "its start")
    return name


def read(client: Client, execution: ExecutionView) -> tuple[bytes, ExecutionOutcome, int | None, int | None]:
    """Return the output of a command on stdout, and its end."""
    output = b""
    for event in client.follow_execution(execution):
        output += b"".join(part.data for part in event.parts if part.stream == "stdout")
        if event.end is not None:
            return output, event.end.outcome, event.end.exit_code, event.end.signal
    pytest.fail("no end")


def begin(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, "HEADWAY_URL": cluster.stack.url, "HEADWAY_TOKEN": cluster.stack.token}
    return subprocess.Popen(
        [sys.executable, "-m", "headway.cli", "exec", *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_command_has_streams_environment_and_exit_code_and_is_audited(cluster: Cluster, job: str) -> None:
    done = cluster.headway("exec", job, "--", "sh", "-c", "echo $COLOUR-$RANK; echo oops >&2; cat; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "teal-0\n", "oops\n")
    (entry,) = [
        one
        for one in json.loads(cluster.headway("audit", "-o", "json").stdout)["items"]
        if one["action"] == "execute_command" and job in one["target"]
    ]
    assert entry["detail"]["argv"].startswith("sh -c 'echo $COLOUR-$RANK")


def test_large_output_arrives_complete_and_beyond_the_limit_ends_the_command(
    cluster: Cluster, job: str
) -> None:
    client = cluster.client
    within = client.execute(job, ["head", "-c", "2000000", "/dev/zero"])
    assert read(client, within) == (bytes(2_000_000), ExecutionOutcome.EXITED, 0, None)
    _, outcome, _, _ = read(client, client.execute(job, ["yes"]))
    assert outcome is ExecutionOutcome.OUTPUT_LIMIT


def test_interrupted_cli_kills_the_command(cluster: Cluster, job: str) -> None:
    process = begin(cluster, job, "--", "sh", "-c", "echo ready; exec sleep 599.25")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    cluster.until(lambda: not sleeping("599.25"), "the end of the command")


def test_end_of_the_rank_ends_the_command(cluster: Cluster, job: str) -> None:
    execution = cluster.client.execute(job, ["sleep", "599.5"])
    cluster.until(lambda: sleeping("599.5"), "the command")
    cluster.client.cancel(job, force=True)
    assert read(cluster.client, execution) == (b"", ExecutionOutcome.EXITED, None, signal.SIGKILL)


def test_timeout_and_unknown_program_have_their_codes(cluster: Cluster, job: str) -> None:
    client = cluster.client
    assert read(client, client.execute(job, ["sleep", "600"], timeout_s=0.2))[1] is ExecutionOutcome.TIMED_OUT
    done = cluster.headway("exec", job, "--", "no-such-program")
    assert done.returncode == 126
    assert "no-such-program" in done.stderr


def test_wrong_requests_are_refused_with_stable_codes(cluster: Cluster, job: str) -> None:
    client = cluster.client

    def code_of(*argv: str, rank: int = 0, of: str = job) -> str:
        with pytest.raises(ApiError) as refused:
            client.execute(of, list(argv), rank=rank)
        return refused.value.problem.code

    assert code_of("true", rank=5) == "not_found"
    assert code_of("") == "invalid_field"
    assert code_of() == "invalid_field"
    running = [client.execute(job, ["sleep", "600"]) for _ in range(4)]
    assert code_of("true") == "too_many_commands"
    for one in running:
        client.cancel_execution(one)
    assert {read(client, one)[1] for one in running} == {ExecutionOutcome.CANCELLED}
    client.cancel(job, force=True)
    cluster.until(lambda: client.job(job).state is JobState.CANCELLED, "the end of the job")
    assert code_of("true") == "illegal_transition"


JOINS = """
import torch.distributed
torch.distributed.init_process_group("gloo")
print("joined", torch.distributed.get_world_size())
"""


@pytest.mark.parametrize("script", ["import headway; headway.init()", JOINS], ids=["headway", "torch"])
def test_training_script_as_a_command_fails_and_leaves_the_training_alone(
    patient: PatientJob, cluster: Cluster, script: str
) -> None:
    patient.start(2, most=2)
    generation = patient.view().generation
    done = cluster.headway("exec", patient.name, "--", "python", "-c", script)
    assert done.returncode == 1, done.stderr
    assert ("command beside a rank" if "headway" in script else "expected, but not set") in done.stderr
    samples = patient.view().progress.samples
    cluster.until(lambda: patient.view().progress.samples > samples, "the next samples")
    assert (patient.view().generation, patient.view().size) == (generation, 2)
    patient.finish()


def test_command_has_the_place_of_its_rank_but_not_the_way_to_the_others(
    patient: PatientJob, cluster: Cluster
) -> None:
    patient.start(2, most=2)
    done = cluster.headway("exec", patient.name, "--rank", "1", "--", "env")
    names = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert (names["RANK"], names["LOCAL_RANK"]) == ("1", "1")
    assert not names.keys() & MEMBERSHIP_VARIABLES
    patient.finish()


def sleeping(seconds: str) -> bool:
    """Return True while a process sleeps for this time."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return f"sleep {seconds}" in found.splitlines()
