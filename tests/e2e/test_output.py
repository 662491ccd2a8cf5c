"""Scripts that keep their files by themselves: what they wrote is there wherever they go on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobView
from tests.e2e.conftest import SCRIPTS, Cluster, end_job, job_name


@pytest.fixture
def job(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = job_name(request)
    yield name
    for node in cluster.client.nodes():
        cluster.client.uncordon(node.id)
    end_job(cluster.client, name)


def logged(cluster: Cluster, name: str, pattern: str) -> list[int]:
    return [int(one) for one in re.findall(pattern, cluster.headway("logs", name).stdout)]


def submit(cluster: Cluster, name: str, hurry: Path, **spec: object) -> JobView:
    fields = {
        "name": name,
        "workdir": str(SCRIPTS),
        "run": "python relative.py",
        "env": {"HURRY": str(hurry), "SIDE": "side.txt"},
        "elastic": {"resize": "restart"},
        **spec,
    }
    return cluster.client.submit(JobSpec.model_validate(fields))


@pytest.mark.slow
@pytest.mark.parametrize(
    "output", [{"dir": ".", "as_cwd": True}, {"as_cwd": True}, {"dir": "results/run", "as_cwd": True}]
)
def test_a_moved_script_goes_on_at_the_epoch_it_stopped_at(
    cluster: Cluster, job: str, tmp_path: Path, output: dict[str, object]
) -> None:
    submitted = submit(cluster, job, tmp_path / "hurry", output=output)
    cluster.until(lambda: logged(cluster, job, r"starts at epoch (\d+)") == [0], "the first start")
    (first,) = cluster.client.job(submitted.id).allocation
    cluster.client.drain(first)
    cluster.until(lambda: len(logged(cluster, job, r"starts at epoch (\d+)")) == 2, "the second start")
    (second,) = cluster.client.job(submitted.id).allocation
    assert second != first
    (tmp_path / "hurry").touch()
    cluster.ended(submitted.id)
    (stopped,) = logged(cluster, job, r"stops at epoch (\d+)")
    assert logged(cluster, job, r"starts at epoch (\d+)") == [0, stopped]
    assert stopped > 0
    target = tmp_path / "downloaded"
    downloaded = cluster.headway("output", job, "--to", str(target))
    assert downloaded.returncode == 0, downloaded.stderr
    (done,) = logged(cluster, job, r"done at epoch (\d+)")
    assert json.loads((target / "snapshot.pt").read_text()) == {"epoch": done}
    assert sorted(one.name for one in target.iterdir()) == ["side.txt", "snapshot.pt"]
