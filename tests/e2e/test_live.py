"""Jobs change their members while they train: what users see of it, through the whole of Headway."""

from __future__ import annotations

import os
import signal

import pytest

from headway.client.client import ApiError
from headway.contract.views.jobs import JobState, Page, Reason
from headway.contract.views.ranks import RankView
from tests.e2e.conftest import PatientJob

LONGEST_PAUSE_S = 30.0
"""Far above what it takes on a machine that does other things as well; `benchmarks.resize` measures it."""


# In the gate: the promise of a change in place.
def test_a_job_grows_and_shrinks_without_a_restart(patient: PatientJob) -> None:
    most = 4  # on two nodes
    patient.start(1, most=most)
    grown = patient.next_event("switch", lambda: patient.resize(most))
    shrunk = patient.next_event("switch", lambda: patient.resize(1))
    assert (grown.data["from"], grown.data["to"], grown.data["how"]) == (1, most, "live")
    assert (shrunk.data["from"], shrunk.data["to"], shrunk.data["how"]) == (most, 1, "live")
    assert f"grew from 1 to {most} slots in place: paused " in grown.message
    assert f"shrank from {most} to 1 slot in place: paused " in shrunk.message
    for event in (grown, shrunk):
        assert 0 < event.data["pause_s"] < LONGEST_PAUSE_S
        assert event.data["lost_steps"] == 0
    assert grown.data["prepare_s"] > grown.data["pause_s"], "training went on while the newcomers came up"
    assert grown.data["sync_bytes"] > 0
    done = patient.finish()
    assert (done.attempt, done.preemptions, done.progress.lost_samples) == (1, 0, 0)
    assert done.progress.pause_s == shrunk.data["pause_s"]
    assert [event.data["slots"] for event in patient.events("allocate")] == [1]


# In the gate: the promise of a lost rank.
@pytest.mark.parametrize("victim", [(1, 0), (1, 1)])
def test_a_killed_rank_costs_a_step_and_no_checkpoint(patient: PatientJob, victim: tuple[int, int]) -> None:
    patient.start(2, most=2)
    lost = patient.next_event("switch", lambda: patient.kill(victim))
    assert "continues with 1 of 2 slots after a loss: paused " in lost.message
    assert 0 < lost.data["pause_s"] < LONGEST_PAUSE_S
    assert lost.data["lost_steps"] <= 1
    (loss,) = patient.events("lose")
    assert (loss.state, loss.reason) == (JobState.RECOVERING, Reason.RANK_LOST)
    assert "was killed by SIGKILL; 1 of 2 ranks go on in place" in loss.message
    grown = patient.next_event("switch", lambda: None)
    assert (grown.data["from"], grown.data["to"]) == (1, 2), "the service grows it back"
    done = patient.finish()
    assert (done.attempt, done.infrastructure_failures, done.progress.lost_samples) == (1, 0, 0)
    assert done.progress.lost_steps == lost.data["lost_steps"]
    assert patient.events("restore") == []


@pytest.mark.slow
def test_the_process_that_headway_ranks_prints_is_the_rank_that_is_lost(patient: PatientJob) -> None:
    patient.start(1, most=2)
    patient.next_event("switch", lambda: patient.resize(2))
    header, first, second = patient.cluster.headway("ranks", patient.name).stdout.splitlines()
    assert header.split() == ["RANK", "NODE", "SLOT", "PID", "STARTED", "AS", "PART"]
    assert [line.split()[4] for line in (first, second)] == ["1.0", "2.1"]
    rank, node, slot, pid, *_ = second.split()
    assert patient.ranks()[2, 1] == int(pid)
    assert int(slot) in patient.view().allocation[node]
    os.kill(int(pid), signal.SIGKILL)
    patient.cluster.until(lambda: bool(patient.events("lose")), "the loss")
    (loss,) = patient.events("lose")
    assert loss.message.startswith(f"rank {rank} was killed by SIGKILL; 1 of 2 ranks go on in place")
    as_json = patient.cluster.headway("ranks", patient.name, "-o", "json")
    listed = Page[RankView].model_validate_json(as_json.stdout).items
    assert int(pid) not in [one.pid for one in listed]
    patient.finish()


@pytest.mark.slow
def test_a_renumbered_rank_has_its_new_rank_in_the_log(patient: PatientJob) -> None:
    patient.start(3, most=3, PRINTS="1")
    patient.next_event("switch", lambda: patient.kill((1, 1)))  # the last rank is rank 1 from now on
    patient.next_event("switch", lambda: None)  # and a new one is rank 2
    patient.finish()
    lines = patient.cluster.headway("logs", patient.name).stdout.splitlines()
    assert {line for line in lines if line[-1].isdigit()} == {"[0] 0", "[1] 1", "[2] 2"}
    chunks = list(patient.cluster.client.logs(patient.id))
    born = {(one.generation, one.rank, one.present_rank) for one in chunks if one.text.strip()}
    assert {(1, 1, 1), (1, 2, 2), (1, 2, 1)} <= born
    for rank in range(3):
        of_rank = patient.cluster.headway("logs", patient.name, "--rank", str(rank)).stdout.split()
        assert {line for line in of_rank if line.isdigit()} == {str(rank)}


@pytest.mark.slow
def test_a_job_whose_last_rank_is_killed_starts_from_its_checkpoint(patient: PatientJob) -> None:
    patient.start(1, most=2)
    patient.cluster.until(lambda: bool(patient.view().progress.checkpoint_samples), "a checkpoint")
    restored = patient.next_event("restore", lambda: patient.kill((1, 0)))
    assert restored.data["samples"] > 0
    done = patient.finish()
    assert (done.attempt, done.infrastructure_failures) == (2, 1)


@pytest.mark.slow
def test_a_sharded_job_changes_size_in_place_and_restarts_after_a_loss(patient: PatientJob) -> None:
    patient.start(2, most=3, SHARDED="fsdp")
    grown = patient.next_event("switch", lambda: patient.resize(3))
    shrunk = patient.next_event("switch", lambda: patient.resize(2))
    assert (grown.data["from"], grown.data["to"], grown.data["how"]) == (2, 3, "live")
    assert (shrunk.data["from"], shrunk.data["to"], shrunk.data["how"]) == (3, 2, "live")
    assert all(event.data["sync_bytes"] > 0 for event in (grown, shrunk))
    assert patient.view().attempt == 1
    patient.cluster.until(lambda: bool(patient.view().progress.checkpoint_samples), "a checkpoint")
    victim = max(patient.ranks())
    restored = patient.next_event("restore", lambda: patient.kill(victim))
    assert restored.data["samples"] > 0
    assert patient.events("lose") == []
    done = patient.finish()
    assert (done.attempt, done.infrastructure_failures) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallel", "names", "mesh"),
    [
        ({"tp": 2}, "replicate,fsdp,tp", "replicate=1,fsdp={},tp=2"),
        ({"pp": 2}, "pp,replicate,fsdp", "pp=2,replicate=1,fsdp={},tp=1"),
    ],
    ids=["tp", "pp"],
)
def test_a_job_on_a_mesh_changes_it_in_place(
    patient: PatientJob, parallel: dict[str, int], names: str, mesh: str
) -> None:
    patient.start(2, most=4, parallel=parallel, SHARDED=names)
    assert patient.view().progress.mesh == mesh.format(1)
    grown = patient.next_event("switch", lambda: patient.resize(4))
    assert (grown.data["from"], grown.data["to"], grown.data["how"]) == (2, 4, "live")
    assert patient.view().progress.mesh == mesh.format(2)
    with pytest.raises(ApiError, match="2, 4 slots"):
        patient.resize(3)
    shrunk = patient.next_event("switch", lambda: patient.resize(2))
    assert (shrunk.data["from"], shrunk.data["to"], shrunk.data["how"]) == (4, 2, "live")
    done = patient.finish()
    assert (done.attempt, done.progress.lost_samples) == (1, 0)


@pytest.mark.slow
def test_a_job_restarts_after_the_loss_of_a_stage(patient: PatientJob) -> None:
    patient.start(2, most=2, parallel={"pp": 2}, SHARDED="pp,fsdp")
    patient.cluster.until(lambda: bool(patient.view().progress.checkpoint_samples), "a checkpoint")
    victim = max(patient.ranks())
    restored = patient.next_event("restore", lambda: patient.kill(victim))
    assert restored.data["samples"] > 0
    done = patient.finish()
    assert (done.attempt, done.infrastructure_failures) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [(1, 0), (1, 2)])
def test_a_killed_rank_of_a_sharded_job_with_copies_costs_a_step(
    patient: PatientJob, victim: tuple[int, int]
) -> None:
    patient.start(3, most=3, redundancy="neighbour", SHARDED="fsdp")
    lost = patient.next_event("switch", lambda: patient.kill(victim))
    assert (lost.data["from"], lost.data["to"], lost.data["how"]) == (3, 2, "live")
    assert lost.data["lost_steps"] <= 1
    assert lost.data["sync_bytes"] > 0
    grown = patient.next_event("switch", lambda: None)
    assert (grown.data["from"], grown.data["to"]) == (2, 3), "the service grows it back"
    done = patient.finish()
    assert (done.attempt, done.infrastructure_failures, done.progress.lost_samples) == (1, 0, 0)
    assert patient.events("restore") == []


@pytest.mark.slow
def test_a_killed_rank_of_a_job_with_replicas_costs_a_step(patient: PatientJob) -> None:
    patient.start(4, most=4, parallel={"fsdp": 2}, SHARDED="replicate,fsdp")
    assert patient.view().progress.mesh == "replicate=2,fsdp=2,tp=1"
    lost = patient.next_event("switch", lambda: patient.kill((1, 3)))
    assert (lost.data["from"], lost.data["to"], lost.data["how"]) == (4, 3, "live")
    assert lost.data["lost_steps"] <= 1
    assert lost.data["sync_bytes"] > 0
    (loss,) = patient.events("lose")
    assert (loss.data["generation"], loss.data["survivors"]) == (2, 3)
    grown = patient.next_event("switch", lambda: None)
    assert (grown.data["from"], grown.data["to"]) == (3, 4), "the service grows it back"
    done = patient.finish()
    assert (done.attempt, done.infrastructure_failures, done.progress.lost_samples) == (1, 0, 0)
    assert patient.events("restore") == []


@pytest.mark.slow
def test_all_ranks_with_a_part_of_the_model_are_lost_at_once(patient: PatientJob) -> None:
    patient.start(4, most=4, parallel={"fsdp": 2}, SHARDED="replicate,fsdp")
    patient.cluster.until(lambda: bool(patient.view().progress.checkpoint_samples), "a checkpoint")

    def kill_both() -> None:
        patient.kill((1, 1))
        patient.kill((1, 3))

    restored = patient.next_event("restore", kill_both)
    assert restored.data["samples"] > 0
    assert patient.events("switch") == []
    done = patient.finish()
    assert (done.attempt, done.infrastructure_failures, done.user_errors) == (2, 1, 0)


def test_a_drained_node_is_left_through_a_checkpoint_when_nobody_stays(patient: PatientJob) -> None:
    patient.start(1, most=2)
    (node,) = patient.view().allocation
    client = patient.cluster.client
    try:
        moved = patient.next_event("switch", lambda: client.drain(node))
        assert "moved 1 slot through a checkpoint: paused " in moved.message
        assert moved.data["how"] == "checkpoint"
        assert 0 < moved.data["pause_s"] < LONGEST_PAUSE_S
        assert node not in patient.view().allocation
    finally:
        client.uncordon(node)
    done = patient.finish()
    assert (done.attempt, done.progress.lost_samples, done.progress.lost_steps) == (1, 0, 0)


@pytest.mark.slow
def test_newcomers_that_cannot_start_leave_the_job_as_it_is(patient: PatientJob) -> None:
    patient.start(1, most=2, NEWCOMERS_FAIL="1")
    given_up = patient.next_event("abandon", lambda: patient.resize(2))
    assert given_up.state is JobState.RUNNING
    assert "stays at 1 slot: a new rank failed: " in given_up.message
    assert "there is no licence for another process" in given_up.message, "why is what its output says"
    samples = patient.view().progress.samples
    patient.cluster.until(lambda: patient.view().progress.samples > samples, "training to go on")
    job = patient.view()
    assert (job.generation, job.attempt, job.size) == (1, 1, 1)
    patient.cluster.until(
        lambda: "new ranks did not come up" in patient.cluster.headway("explain", patient.name).stdout,
        "the explanation",
    )
    assert "stays at 1 slot" in patient.cluster.headway("events", patient.name).stdout
    done = patient.finish()
    assert (done.attempt, done.infrastructure_failures, done.user_errors) == (1, 0, 0)
