"""The fault run's checker is shown every kind of broken promise, and its plan is the seed's alone."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.faulting import checker
from benchmarks.faulting.evidence import (
    Ending,
    Finding,
    Left,
    Life,
    Result,
    Sealed,
    Sighting,
    Submission,
    listening,
    read_journal,
    read_result,
    read_safetensors,
)
from benchmarks.faulting.histories import Call, Operation, Seen
from benchmarks.faulting.plan import Action, Kind, make_plan
from benchmarks.faulting.run import Evidence, Order
from benchmarks.faulting.verdict import PROMISES, findings, summary
from headway.contract.manifest import CheckpointPart, Manifest, Name

SUBMITTED = Submission(name="one", script="counted", seed=1, job="j1", may_be_cancelled=False)
LIFE = Life(
    job="j1", name="one", generation=1, rank=0, node="agent-1", slot=0, pid=10, born_s=100.0, seen_s=110.0
)
EXACT = Result(table=-np.ones((2, 4)), losses=np.array([0.5, 0.25]))


def ended(state: str, job: str = "j1", name: str = "one") -> Ending:
    return Ending(job, name, state, "a message")


def promises(found: list[Finding]) -> list[str]:
    return [one.promise for one in found]


# Jobs


def test_a_job_that_ended_well_is_not_lost() -> None:
    assert checker.lost_jobs([SUBMITTED], [ended("SUCCEEDED")]) == []


@pytest.mark.parametrize("endings", [[], [ended("FAILED")], [ended("RUNNING")], [ended("CANCELLED")]])
def test_an_acknowledged_job_must_end_well(endings: list[Ending]) -> None:
    assert promises(checker.lost_jobs([SUBMITTED], endings)) == ["lost_jobs"]


def test_a_job_may_be_cancelled_by_who_asked_for_it_alone() -> None:
    asked = replace(SUBMITTED, may_be_cancelled=True)
    assert checker.lost_jobs([asked], [ended("CANCELLED")]) == []
    assert promises(checker.lost_jobs([asked], [ended("FAILED")])) == ["lost_jobs"]


def test_nothing_is_promised_for_a_submit_without_an_answer() -> None:
    assert checker.lost_jobs([replace(SUBMITTED, job=None)], []) == []


def test_a_repeated_submit_must_not_be_two_jobs() -> None:
    twice = [ended("SUCCEEDED"), ended("SUCCEEDED", job="j2")]
    assert promises(checker.doubled_jobs([SUBMITTED], twice)) == ["doubled_jobs"]
    assert promises(checker.doubled_jobs([], [ended("SUCCEEDED")])) == ["doubled_jobs"]
    assert checker.doubled_jobs([SUBMITTED], [ended("SUCCEEDED")]) == []


def test_success_needs_something_to_show_for_it() -> None:
    done = [ended("SUCCEEDED")]
    assert checker.unfinished_work([SUBMITTED], done, results={"j1"}, finished=set()) == []
    assert promises(checker.unfinished_work([SUBMITTED], done, results=set(), finished={"j1"})) == [
        "lost_jobs"
    ]
    plain = replace(SUBMITTED, script="plain")
    assert checker.unfinished_work([plain], done, results=set(), finished={"j1"}) == []
    assert promises(checker.unfinished_work([plain], done, results=set(), finished=set())) == ["lost_jobs"]


# Slots


def test_one_after_the_other_is_right() -> None:
    after = replace(LIFE, job="j2", name="two", pid=11, born_s=110.0, seen_s=120.0)
    assert checker.double_slots([after, LIFE]) == []


def test_two_processes_on_one_slot_at_one_time_are_found() -> None:
    beside = replace(LIFE, job="j2", name="two", pid=11, born_s=109.0, seen_s=120.0)
    (found,) = checker.double_slots([LIFE, beside])
    assert found.whom == "agent-1 slot 0"
    assert "1.00 s" in found.sentence


def test_also_two_generations_of_one_job_and_one_that_outlives_its_successor() -> None:
    long = replace(LIFE, seen_s=200.0)
    lives = [long, replace(LIFE, generation=2, pid=11, born_s=120.0, seen_s=121.0)]
    lives.append(replace(LIFE, generation=3, pid=12, born_s=150.0, seen_s=151.0))
    assert promises(checker.double_slots(lives)) == ["double_slots"] * 2


def test_other_slots_and_other_nodes_are_others() -> None:
    assert (
        checker.double_slots([LIFE, replace(LIFE, slot=1, pid=2), replace(LIFE, node="agent-2", pid=3)]) == []
    )


# Samples and losses


def test_every_sample_once_is_right_to_rounding() -> None:
    near = replace(EXACT, table=EXACT.table + 1e-12)
    assert checker.lost_samples("one", near) == checker.repeated_samples("one", near) == []


@pytest.mark.parametrize(
    ("count", "promise"),
    [(0.0, "lost_samples"), (0.5, "lost_samples"), (2.0, "repeated_samples"), (1.25, "repeated_samples")],
)
def test_a_sample_that_counts_less_or_more_is_found(count: float, promise: str) -> None:
    table = EXACT.table.copy()
    table[1, 2] = -count
    result = replace(EXACT, table=table)
    (found,) = [*checker.lost_samples("one", result), *checker.repeated_samples("one", result)]
    assert found.promise == promise
    assert "epoch 1 sample 2" in found.sentence


def test_another_loss_is_found_at_its_epoch() -> None:
    assert checker.differing_losses("one", EXACT, EXACT) == []
    other = replace(EXACT, losses=np.array([0.5, 0.2501]))
    (found,) = checker.differing_losses("one", other, EXACT)
    assert "after epoch 1" in found.sentence
    missing = replace(EXACT, losses=np.array([0.5]))
    assert promises(checker.differing_losses("one", missing, EXACT)) == ["differing_losses"]


# Generations


def test_checkpoints_come_in_the_order_of_generations() -> None:
    first, second = Sealed("j1", 1, 0, 16, 10.0), Sealed("j1", 2, 0, 32, 11.0)
    assert checker.stale_checkpoints([second, first, replace(first, job="j2", at_s=12.0)]) == []
    late = replace(first, samples=48, at_s=12.0)
    (found,) = checker.stale_checkpoints([first, second, late])
    assert "1.000 s after generation 2" in found.sentence


def test_a_generation_that_goes_back_and_a_job_that_comes_back_are_found() -> None:
    seen = [Sighting("j1", 1.0, 1, "RUNNING"), Sighting("j1", 2.0, 3, "RUNNING")]
    assert checker.stale_states(seen) == []
    assert promises(checker.stale_states([*seen, Sighting("j1", 3.0, 2, "RUNNING")])) == ["stale_writes"]
    done = [Sighting("j1", 1.0, 1, "SUCCEEDED"), Sighting("j1", 2.0, 1, "RUNNING")]
    assert promises(checker.stale_states(done)) == ["stale_writes"]


# All of it


def test_the_verdict_counts_every_promise() -> None:
    evidence = Evidence(
        submissions=[SUBMITTED, replace(SUBMITTED, name="two", job="gone")],
        endings=[ended("SUCCEEDED"), ended("SUCCEEDED", "j3", "nobody's")],
        lives=[LIFE, replace(LIFE, pid=11, generation=2)],
        sealed=[Sealed("j1", 2, 0, 1, 1.0), Sealed("j1", 1, 0, 1, 2.0)],
        results={"j1": Result(table=np.array([[0.0, -2.0]]), losses=np.array([0.5]))},
        undisturbed={1: Result(table=-np.ones((1, 2)), losses=np.array([0.25]))},
        left=[Left("process 1", "agent-1")],
        history=[
            Operation("one", Call.READ, 1.0, 2.0, Seen("j1", "RUNNING", 1, None))
        ],  # submitted by nobody
    )
    found = findings(evidence)
    order = Order(seed=1, minutes=1.0, faults=3, jobs=0)
    result = summary(order, evidence, found)
    assert {promise: result[promise] for promise in PROMISES} == dict.fromkeys(PROMISES, 1)


def test_who_cancelled_a_job_stands_on_what_it_had() -> None:
    asked = replace(SUBMITTED, may_be_cancelled=True)
    part = Result(table=np.zeros((2, 4)), losses=np.zeros(2))
    evidence = Evidence(submissions=[asked], endings=[ended("CANCELLED")], results={"j1": part})
    assert findings(evidence) == []


# Evidence


def test_the_last_line_of_a_process_that_was_killed_may_be_cut_short(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text('{"kind": "begin"}\n{"kind": "st')
    assert list(read_journal(journal)) == [{"kind": "begin"}]


def test_ports_that_are_listened_on() -> None:
    lines = [
        "  sl  local_address rem_address   st",
        "   0: 0100007F:4E20 00000000:0000 0A 00000000",
        "   1: 0100007F:4E21 0100007F:1234 01 00000000",
    ]
    assert listening(lines) == [20_000]


def written(folder: Path, name: Name, table: list[float], *, digest: str | None = None) -> None:
    """A checkpoint as the library lays it out."""
    values = {"0.table": table, "2.losses": [0.5]}
    header, data = {}, b""
    for key, numbers in values.items():
        header[key] = {"dtype": "F64", "shape": [1, len(numbers)] if "table" in key else [1]}
        header[key]["data_offsets"] = [len(data), len(data) + 8 * len(numbers)]
        data += struct.pack(f"<{len(numbers)}d", *numbers)
    text = json.dumps(header).encode()
    whole = struct.pack("<Q", len(text)) + text + data
    (folder / str(name)).mkdir(parents=True)
    (folder / str(name) / "0-0.safetensors").write_bytes(whole)
    part = CheckpointPart("0-0.safetensors", len(whole), digest or hashlib.sha256(whole).hexdigest())
    manifest = Manifest(
        generation=name.generation, epoch=name.epoch, samples_in_epoch=0, samples=0, parts=(part,)
    )
    (folder / str(name) / "manifest.json").write_bytes(manifest.to_text())


def test_the_newest_checkpoint_counts_and_one_without_a_manifest_does_not(tmp_path: Path) -> None:
    written(tmp_path, Name(1, 5, 0), [-1.0, -1.0])
    written(tmp_path, Name(2, 1, 0), [-1.0, -2.0])
    (tmp_path / str(Name(3, 0, 0))).mkdir()
    result = read_result(tmp_path)
    assert result is not None
    assert result.table.tolist() == [[-1.0, -2.0]]
    assert result.losses.tolist() == [0.5]


def test_a_damaged_checkpoint_is_no_result(tmp_path: Path) -> None:
    written(tmp_path, Name(1, 5, 0), [-1.0], digest="0" * 64)
    with pytest.raises(ValueError, match="checksum"):
        read_result(tmp_path)


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None


def test_only_reals_of_64_bits_are_read() -> None:
    text = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    assert read_safetensors(struct.pack("<Q", len(text)) + text + b"x") == {}


# The plan


def test_a_seed_is_a_plan() -> None:
    first = make_plan(5, minutes=2.0, faults=40, lease_s=20.0, jobs=8)
    assert first == make_plan(5, minutes=2.0, faults=40, lease_s=20.0, jobs=8)
    assert first != make_plan(6, minutes=2.0, faults=40, lease_s=20.0, jobs=8)
    assert [fault.at_s for fault in first.faults] == sorted(fault.at_s for fault in first.faults)
    assert len(first.faults) == 40
    assert {fault.kind for fault in first.faults} == set(Kind), "a long run meets all kinds"
    armed = sum(fault.kind is Kind.KILL_ANSWERING for fault in first.faults)
    assert sum(action.kind is Action.SUBMIT for action in first.actions) == 8 + armed


def test_a_partition_outlasts_the_lease_and_what_cannot_be_is_left_out() -> None:
    plan = make_plan(
        3, minutes=5.0, faults=200, lease_s=20.0, jobs=0, without=[Kind.FILL_STORAGE, Kind.JUMP_CLOCK]
    )
    partitions = [fault for fault in plan.faults if fault.kind in {Kind.PARTITION, Kind.VANISH}]
    assert partitions
    assert all(fault.lasts_s > 20.0 for fault in partitions)
    assert not {Kind.FILL_STORAGE, Kind.JUMP_CLOCK} & {fault.kind for fault in plan.faults}
