"""Jobs that start after others, with their files, on real agents."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState, JobView, Reason
from tests.e2e.conftest import Cluster, end_job, job_name

WRITE = """#!/bin/sh
until test -e "$GATE"; do sleep 0.1; done
mkdir -p $HEADWAY_OUTPUT_DIR/data
echo tokens > $HEADWAY_OUTPUT_DIR/data/tokens.txt
exit $CODE
"""


@pytest.fixture
def prefix(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = job_name(request)[:40].strip("-")
    yield name
    for job in ("prep", "train", "mend"):
        end_job(cluster.client, f"{name}-{job}")


def submit(cluster: Cluster, name: str, run: str, **fields: object) -> JobView:
    spec = {"name": name, "run": run, "elastic": {"resize": "never"}, **fields}
    return cluster.client.submit(JobSpec.model_validate(spec))


@pytest.mark.slow
def test_next_job_finds_the_files_of_the_one_before_and_a_failure_ends_the_chain(
    cluster: Cluster, prefix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    gate = tmp_path_factory.mktemp("gate") / "open"
    for folder in gate.parents[:2]:
        folder.chmod(0o711)
    env = {"GATE": str(gate), "CODE": "0"}
    prep = submit(cluster, f"{prefix}-prep", WRITE, env=env)
    variable = f"HEADWAY_AFTER_{prep.name.upper().replace('-', '_')}"
    train = submit(cluster, f"{prefix}-train", f"cat ${variable}/data/tokens.txt", after=[prep.name])
    mend = submit(
        cluster,
        f"{prefix}-mend",
        "true",
        after=[prep.name, {"job": train.id, "on": "failed", "files": False}],
    )
    assert "the success of" in cluster.client.job(train.id).present
    shown = cluster.headway("graph", train.name)
    assert [name in shown.stdout for name in (prep.name, train.name, mend.name)] == [True] * 3, shown
    gate.touch()
    cluster.ended(prep.id)
    done = cluster.ended(train.id)
    assert "tokens" in cluster.headway("logs", train.name).stdout
    events = {one.kind: one.at for one in cluster.client.events(train.id)}
    before = cluster.client.job(prep.id).finished_at
    assert before is not None
    assert done.started_at is not None
    assert (events["release"] - before).total_seconds() < 5  # the benchmark measures it on an idle machine
    cluster.until(lambda: cluster.client.job(mend.id).state is JobState.CANCELLED, "the end of the chain")
    assert cluster.client.job(mend.id).reason is Reason.AFTER
    graph = json.loads(cluster.headway("graph", prep.name, "-o", "json").stdout)
    assert {one["state"] for one in graph["jobs"]} == {"SUCCEEDED", "CANCELLED"}
