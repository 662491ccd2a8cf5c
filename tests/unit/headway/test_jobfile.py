from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.jobfile import JobFileError, load, parse

GOOD = """\
name: digits
run: python digits.py
elastic:
  min: 1
  max: 4
"""


def complaint(text: str, *overrides: str) -> str:
    with pytest.raises(JobFileError) as caught:
        parse(text, "job.yaml", overrides)
    return str(caught.value)


def test_a_good_file_is_a_spec():
    spec = parse(GOOD, "job.yaml")
    assert (spec.name, spec.elastic.max) == ("digits", 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "  mn: 1\n", "job.yaml:6: elastic.mn: there is no such field; did you mean `min`?"),
        (GOOD + "maximum: 1\n", "job.yaml:6: maximum: there is no such field; there are batch, "),
        (
            GOOD + "grace_s: 1\n",
            "job.yaml:6: grace_s: there is no such field; did you mean `checkpoint.grace_s`?",
        ),
        (
            GOOD + "batch: {globl: 3}\n",
            "job.yaml:6: batch.globl: there is no such field; did you mean `global`?",
        ),
        (GOOD.replace("max: 4", "max: 0"), "job.yaml:5: elastic.max: must be at least 1"),
        (GOOD.replace("max: 4", "max: many"), "job.yaml:5: elastic.max: must be a whole number"),
        (GOOD.replace("min: 1", "min: 8"), "job.yaml:3: elastic: min (8) is larger than max (4)"),
        (GOOD.replace("name: digits", "name: My Job"), "job.yaml:1: name: use a-z, 0-9 and -"),
        (GOOD.replace("name: digits\n", ""), "job.yaml: name: this field is needed"),
        (GOOD.replace("run: python digits.py", "run:"), "job.yaml:2: run: must be text"),
        (GOOD.replace("run: python digits.py", "run: ' '"), "job.yaml:2: run: run is empty"),
        (GOOD + "env:\n  A: 1\n", 'job.yaml:7: env.A: must be text; write it in quotes: "…"'),
        (GOOD + "env: {RANK: '1'}\n", "job.yaml:6: env: RANK: set by Headway for every rank"),
        (GOOD + "market: free\n", "job.yaml:6: market: must be 'on-demand', 'spot' or 'mixed'"),
        (GOOD + "  sizes: [1, x]\n", "job.yaml:6: elastic.sizes.1: must be a whole number"),
        (GOOD + "  sizes: odd\n", "job.yaml:6: elastic.sizes: must be 'any' or 'pow2', or must be a list"),
        (GOOD + "checkpoint: {every: soon}\n", "'soon' is not a duration; write it like 30s, 5m or 2h"),
        (GOOD + "resources: {memory_per_slot: lots}\n", "'lots' is not a size; write it like"),
        (GOOD + "elastic: 3\n", "job.yaml:6: elastic is given twice, first in line 3"),
        (GOOD + "x: [\n", "job.yaml:7: "),
        ("- a\n", "job.yaml is not a job file"),
        ("", "job.yaml is not a job file"),
        ("a: \x00", "job.yaml: "),
    ],
)
def test_an_error_names_line_and_field(text: str, expected: str):
    assert expected in complaint(text)


def test_every_wrong_field_is_listed_in_the_order_of_the_file():
    text = "nam: x\nrun: a\nelastic: {max: 0}\npriority: 200\n"
    fields = [line.split(": ")[1] for line in complaint(text).splitlines()]
    assert fields == ["name", "nam", "elastic.max", "priority"]


def test_overrides_replace_and_add_fields():
    spec = parse(
        GOOD, "job.yaml", ["elastic.max=8", "batch.global=64", "env.THREADS=2", "elastic.sizes=[2, 8]"]
    )
    assert spec.elastic.max == 8
    assert spec.elastic.sizes == (2, 8)
    assert spec.batch.global_ == 64
    assert spec.env == {"THREADS": "2"}


def test_overrides_are_checked_like_the_file():
    assert "elastic.max: must be at least 1" in complaint(GOOD, "elastic.max=0")
    assert "not of the form key=value" in complaint(GOOD, "elastic.max")
    assert "name has no fields" in complaint(GOOD, "name.x=1")


def test_a_missing_file_is_explained(tmp_path: Path):
    with pytest.raises(JobFileError, match=r"nowhere\.yaml: No such file"):
        load(tmp_path / "nowhere.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(JobFileError, match="is not text"):
        load(tmp_path / "binary.yaml")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab: -[]{}'\"\n#&*", max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "run", "elastic", "x"]), inner)
    ),
    max_leaves=8,
)


@given(_VALUES | st.text(max_size=40))
def test_whatever_a_file_holds_the_error_is_one_for_people(value: object):
    with contextlib.suppress(JobFileError):
        parse(str(value), "job.yaml")
