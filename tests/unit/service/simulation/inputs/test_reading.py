"""Tests of input files: every form is read, and errors name the file, row and column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from service.simulation.inputs.reading import world_of
from service.simulation.inputs.streams import read_stream
from service.simulation.model.clusters import read_cluster
from service.simulation.model.laws import law_of
from service.simulation.model.world import BadInput

LAW = law_of("power:0.5")
CLUSTER = "kinds:\n  - {kind: t4, nodes: 2, slots_per_node: 4, usd_per_slot_h: 0.5}\n"
SACCT = "JobID|Submit|Start|End|Elapsed|ReqTRES|AllocTRES\n"


def file(folder: Path, content: str, name: str = "jobs.csv") -> Path:
    path = folder / name
    path.write_text(content)
    return path


def test_a_workload_is_read_in_the_order_of_submits(tmp_path: Path) -> None:
    content = "name,time,application,num_replicas,batch_size\nb,20,bert,4,12\na,10.5,ncf,1,256\n"
    jobs = read_stream(file(tmp_path, content))
    assert [(job.id, job.submit_s, job.application, job.slots) for job in jobs] == [
        ("a", 10.5, "ncf", 1),
        ("b", 20.0, "bert", 4),
    ]


def test_traces_count_from_their_first_job(tmp_path: Path) -> None:
    philly = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:02:00,60,2,120,x\n2017-10-09 07:01:55,0,1,0,x\n"
    first, second = read_stream(file(tmp_path, philly))
    assert (first.submit_s, second.submit_s, second.duration_s, second.slots) == (0.0, 5.0, 60.0, 2)
    assert first.never is not None
    elasticflow = "job_id,submission_time,duration,num_gpu\nx,1000,5,4\ny,1010,7,1\n"
    assert [job.submit_s for job in read_stream(file(tmp_path, elasticflow))] == [0.0, 10.0]


@pytest.mark.parametrize(("tres", "slots"), [("cpu=8,gres/gpu=2", 2), ("gres/gpu:a100=3,gres/gpu:t4=1", 4)])
@pytest.mark.parametrize(
    ("elapsed", "ran_s"), [("1-02:03:04", 93784.0), ("02:03:04", 7384.0), ("03:04", 184.0)]
)
def test_sacct_exports_are_read(tmp_path: Path, tres: str, slots: int, elapsed: str, ran_s: float) -> None:
    lines = [
        f"7|2024-05-01T12:00:10|2024-05-01T12:01:00|2024-05-01T12:02:00|{elapsed}|{tres}|{tres}",
        f"7.batch|2024-05-01T12:00:10|2024-05-01T12:01:00|2024-05-01T12:02:00|{elapsed}|{tres}|{tres}",
        f"6|2024-05-01T12:00:00|Unknown|Unknown|00:00:00|{tres}|",
        "5|2024-05-01T12:00:01|Unknown|Unknown|00:01:00|cpu=2|cpu=2",
    ]
    jobs = {job.id: job for job in read_stream(file(tmp_path, SACCT + "\n".join(lines)))}
    assert list(jobs) == ["6", "5", "7"]
    assert (jobs["7"].submit_s, jobs["7"].slots, jobs["7"].duration_s) == (10.0, slots, ran_s)
    assert jobs["6"].never is not None
    assert jobs["5"].never == "it requested no GPU"


def test_sacct_with_commas_and_without_elapsed(tmp_path: Path) -> None:
    content = 'JobIDRaw,Submit,Start,End,AllocTRES\n9,2024-05-01T12:00:00,2024-05-01T12:00:00,2024-05-01T12:00:30,"cpu=1,gres/gpu=1"\n'
    (job,) = read_stream(file(tmp_path, content))
    assert (job.slots, job.duration_s) == (1, 30.0)


WRONG = {
    "": "is empty",
    "a,b\n1,2\n": "row 1: has no known set of columns",
    "name,time,application\na,1,bert\n": "row 1: has no column 'num_replicas'",
    "name,time,application,num_replicas\n": "has no jobs",
    "name,time,application,num_replicas\na,-1,bert,1\n": "row 2, column time: -1 is not from 0",
    "name,time,application,num_replicas\na,nan,bert,1\n": "row 2, column time: nan is not from 0",
    "name,time,application,num_replicas\na,1,bert,1.5\n": "row 2, column num_replicas: 1.5 is not a whole number",
    "name,time,application,num_replicas\na,1,bert\n": "row 2, column num_replicas: is missing",
    "name,time,application,num_replicas\na,1,bert,1\na,2,bert,1\n": "row 3: the job 'a' is a duplicate",
    "name,time,application,num_replicas\na,1,bert,1\n": "row 2, column application: 'bert' has no profiles",
    "timestamp,duration,num_gpus\nyesterday,1,1\n": "row 2, column timestamp: 'yesterday' is not a date",
    "timestamp,duration,num_gpus\n2017-10-09 07:01:55,long,1\n": "row 2, column duration: 'long' is not a number",
    "timestamp,duration,num_gpus\n2017-10-09 07:01:55,5,9\n": "row 2, column num_gpus: job-2 asks for 9 slots, and",
    "JobID|Submit|Elapsed\n1|x|1\n": "row 1: has no column 'AllocTRES' or 'ReqTRES'",
    "JobID|Submit|AllocTRES\n1|x|1\n": "row 1: has no column 'Elapsed', nor both",
    "JobID|Submit|Elapsed|AllocTRES\n1|2024-05-01|soon|gres/gpu=1\n": "row 2, column Elapsed: 'soon' is not a time",
}


@pytest.mark.parametrize(("content", "why"), WRONG.items())
def test_a_wrong_stream_is_one_clear_error(tmp_path: Path, content: str, why: str) -> None:
    cluster = read_cluster(file(tmp_path, CLUSTER, "cluster.yaml"))
    jobs = file(tmp_path, content)
    with pytest.raises(BadInput) as error:
        world_of(jobs, read_stream(jobs), cluster, law=LAW)
    assert str(error.value).startswith(f"{tmp_path / 'jobs.csv'}: {why}")


def test_a_law_gives_back_the_time_that_a_job_took(tmp_path: Path) -> None:
    content = "job_id,submission_time,duration,num_gpu\nx,0,100,4\nlost,5,0,1\n"
    jobs, cluster = file(tmp_path, content), read_cluster(file(tmp_path, CLUSTER, "cluster.yaml"))
    world = world_of(jobs, read_stream(jobs), cluster, law=LAW)
    (job,) = world.arrivals
    at_four = int(np.flatnonzero(world.configurations.slots == 4)[0])
    assert job.work is not None
    assert job.work / world.applications[0].goodput[0, at_four] == pytest.approx(100.0)
    assert [name for name, _ in world.rejected] == ["lost"]


def test_laws() -> None:
    slots = np.array([1.0, 4.0])
    assert law_of("amdahl:0.5")(slots) == pytest.approx([1.0, 1.6])
    assert law_of("power:0.5")(slots) == pytest.approx([1.0, 2.0])
    for wrong in ("power", "power:2", "amdahl:-1", "amdahl:nan", "linear:1"):
        with pytest.raises(BadInput, match="law"):
            law_of(wrong)


def test_a_cluster_is_read(tmp_path: Path) -> None:
    file(tmp_path, '{"metadata": {"gap_seconds": 60}, "data": [1, 0, 1]}', "spot.json")
    content = (
        CLUSTER + "  - {kind: a100, nodes: 4, slots_per_node: 8, spot_share: 0.5, spot_file: spot.json}\n"
    )
    first, second = read_cluster(file(tmp_path, content))
    assert (first.node_slots, first.usd_per_slot_h, first.spot_nodes) == ((4, 4), 0.5, 0)
    assert (second.slots, second.spot_nodes) == (32, 2)
    assert second.spot is not None
    assert second.spot.available == (1, 0, 1)


WRONG_CLUSTERS = {
    "kinds: [": ", line 1, column",
    "a: 1": ": has no list `kinds`",
    "kinds: []": ": has no list `kinds`",
    "kinds: [t4]": ": kinds[0]: has no keys",
    "kinds: [{nodes: 1, slots_per_node: 1}]": ": kinds[0].kind: is missing",
    "kinds: [{kind: t4, slots_per_node: 1}]": ": kinds[0].nodes: is missing",
    "kinds: [{kind: t4, nodes: 0, slots_per_node: 1}]": ": kinds[0].nodes: 0 is not a whole number from 1",
    "kinds: [{kind: t4, nodes: 1.5, slots_per_node: 1}]": ": kinds[0].nodes: 1.5 is not a whole number",
    "kinds: [{kind: t4, nodes: 1, slots_per_node: .nan}]": ": kinds[0].slots_per_node: nan is not a whole number",
    "kinds: [{kind: t4, nodes: 1, slots_per_node: 1, usd: 1}]": ": kinds[0].usd: is not a key of a kind",
    "kinds: [{kind: t4, nodes: 1, slots_per_node: 1, usd_per_slot_h: -1}]": ": kinds[0].usd_per_slot_h: -1",
    "kinds: [{kind: t4, nodes: 1, slots_per_node: 1}, {kind: t4, nodes: 1, slots_per_node: 1}]": (
        ": kinds[1].kind: 't4' is a duplicate"
    ),
}


@pytest.mark.parametrize(("content", "why"), WRONG_CLUSTERS.items())
def test_a_wrong_cluster_is_one_clear_error(tmp_path: Path, content: str, why: str) -> None:
    path = file(tmp_path, content, "cluster.yaml")
    with pytest.raises(BadInput) as error:
        read_cluster(path)
    assert str(error.value).startswith(f"{path}{why}")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"metadata": {"gap_seconds": 0}, "data": [1]}',
        '{"metadata": {"gap_seconds": 1}, "data": [-1]}',
    ],
)
def test_a_wrong_spot_file_is_one_clear_error(tmp_path: Path, content: str) -> None:
    spot = file(tmp_path, content, "spot.json")
    cluster = "kinds: [{kind: t4, nodes: 1, slots_per_node: 1, spot_file: spot.json}]"
    with pytest.raises(BadInput) as error:
        read_cluster(file(tmp_path, cluster, "cluster.yaml"))
    assert str(error.value).startswith(str(spot))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for read in (read_stream, read_cluster):
        with pytest.raises(BadInput, match="nowhere: cannot be read"):
            read(tmp_path / "nowhere")
