"""Lists of jobs in messages: a project's own jobs by name, those of other projects only by their number."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.allocation.decision.reason_texts import NAMED, named
from tests.unit.service.domain.allocation.scopes import elastic_job


@pytest.mark.parametrize(
    ("own", "foreign", "text"),
    [
        ([], 0, ""),
        (["a"], 0, "a"),
        (["b", "a"], 0, "a and b"),
        ([], 1, "a job of another project"),
        ([], 3, "3 jobs of other projects"),
        (["a"], 1, "a and a job of another project"),
        (["a", "b"], 2, "a, b and 2 jobs of other projects"),
        (list("abcde"), 0, "a, b, c, d and e"),
        (list("abcdefg"), 0, "a, b, c, d, e and 2 more"),
    ],
)
def test_own_jobs_are_named_and_others_counted(own: list[str], foreign: int, text: str) -> None:
    jobs = [elastic_job(name, project="mine") for name in own]
    jobs += [elastic_job(f"secret-{index}", project="theirs") for index in range(foreign)]
    assert named(jobs, "mine") == text


@given(st.lists(st.tuples(st.sampled_from("abcdefghij"), st.booleans()), max_size=9))
@settings(max_examples=30)
def test_no_name_of_another_project_appears(jobs: list[tuple[str, bool]]) -> None:
    made = [
        elastic_job(f"job-{name}-x" if own else f"secret-{name}", project="mine" if own else "theirs")
        for name, own in jobs
    ]
    text = named(made, "mine")
    assert "secret" not in text
    assert text.count("job-") == min(NAMED, sum(own for _, own in jobs))
    assert named(iter(reversed(made)), "mine") == text, "the order of the jobs does not matter"
