from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.spec import JobSpec
from headway.contract.spec_submit import submit_problem
from headway.jobfile import JobFileError, parse
from headway.layout import MAX_NAME_BYTES


def job(**fields: object) -> JobSpec:
    return JobSpec.model_validate({"name": "a", "run": "x", **fields})


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"output": {"dir": "x" * 256}}, "output.dir", "256 bytes"),
        ({"output": {"dir": "a/" + "\u00e9" * 300}}, "output.dir", "600 bytes"),
        ({"output": {"dir": "a\nb"}}, "output.dir", "U+000A"),
        ({"output": {"dir": "a\x7fb"}}, "output.dir", "U+007F"),
        ({"output": {"dir": "/".join(["\u4e2d" * 80] * 5)}}, "output.dir", "1,204 bytes"),
        ({"python": {"requirements": "r" * 300}}, "python.requirements", "300 bytes"),
        ({"python": {"lock": "a\x1b/uv.lock"}}, "python.lock", "U+001B"),
        ({"workdir": "w" * 300}, "workdir", "300 bytes"),
        ({"resources": {"memory_per_slot": "1e30"}}, "resources.memory_per_slot", "1e+30 bytes"),
        ({"output": {"max_size": "9e9TB"}}, "output.max_size", "9e+21 bytes"),
    ],
)
def test_a_value_that_no_host_could_use_is_refused_at_the_submit(
    fields: dict[str, object], field: str, words: str
) -> None:
    problem = submit_problem(job(**fields))
    assert problem is not None
    assert (problem[0], words in problem[1]) == (field, True)


@pytest.mark.parametrize(
    "fields",
    [
        {"output": {"dir": "x" * 255}},
        {"output": {"dir": "\u00e9" * 127 + "/a b"}},
        {"workdir": "a\tb"},
        {"resources": {"memory_per_slot": "2TiB"}},
        {"goal": {"target": {"loss": "<= 1e-3"}}},
        {},
    ],
)
def test_a_value_that_hosts_can_use_is_taken(fields: dict[str, object]) -> None:
    assert submit_problem(job(**fields)) is None


@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=300))
def test_a_folder_that_is_taken_has_a_name_that_linux_takes(name: str) -> None:
    if name in {".", ".."} or submit_problem(job(output={"dir": name})) is not None:
        return
    assert len(name.encode()) <= MAX_NAME_BYTES
    assert name.replace(" ", "x").isprintable() or "\n" not in name


def test_the_refusal_of_a_job_file_names_the_line() -> None:
    with pytest.raises(JobFileError) as caught:
        parse(f"name: a\nrun: x\noutput:\n  dir: {'x' * 256}\n", "job.yaml")
    assert str(caught.value).startswith("job.yaml:4: output.dir: has a name of 256 bytes")


@pytest.mark.parametrize(
    "written",
    ["7200", '"7200"', "7200.5", "2h", "1e9", "true", "2026-12-01", '"2026-12-01"', "soon", "[1]", "2026"],
)
def test_a_deadline_that_is_no_date_and_time_is_refused_with_one(written: str) -> None:
    with pytest.raises(JobFileError) as caught:
        parse(f"name: a\nrun: x\ngoal: {{deadline: {written}}}\n", "job.yaml")
    message = str(caught.value)
    assert message.startswith("job.yaml:3: goal.deadline: ")
    assert "2026-12-01T18:00:00Z" in message


@pytest.mark.parametrize(
    "written", ["2026-12-01T18:00:00Z", '"2026-12-01 18:00:00+02:00"', "2026-12-01 18:00:00 +2"]
)
def test_a_deadline_with_a_time_zone_is_taken(written: str) -> None:
    deadline = parse(f"name: a\nrun: x\ngoal: {{deadline: {written}}}\n", "job.yaml").goal.deadline
    assert deadline is not None
    assert deadline.utcoffset() is not None
