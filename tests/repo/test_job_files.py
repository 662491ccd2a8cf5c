"""Job files in the documentation and among the examples are right, and editors that go by the schema agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from headway.contract.spec import JobSpec
from headway.contract.spec_sweep import SweepSpec
from headway.yaml_source import read_yaml
from tools import jobfile
from tools.pages import ROOT, all_pages, blocks

SCHEMA = jobfile.schema()


def shown() -> dict[str, Any]:
    """By where they stand. What has a `run` at its top is a job file, other YAML is something else."""
    found: dict[str, Any] = {
        file.name: read_yaml(file.read_text(), file.name, 10**6)[0]
        for file in (ROOT / "examples").glob("*.yaml")
    }
    for page in all_pages():
        for block in blocks(page):
            if block.language == "yaml" and "\nrun:" in f"\n{block.text}":
                where = f"{page.relative_to(ROOT)}:{block.line}"
                found[where] = read_yaml(block.text, where, 10**6)[0]
    return found


@pytest.mark.parametrize(("where", "file"), shown().items())
def test_a_job_file_that_is_shown_is_right(where: str, file: dict[str, Any]) -> None:
    model = SweepSpec if "sweep" in file else JobSpec
    spec = model.model_validate({key: value for key, value in file.items() if key != "workdir"})
    assert spec.name
    jsonschema.validate(json.loads(json.dumps(file, default=str)), SCHEMA)


@pytest.mark.parametrize(
    ("field", "value", "right"),
    [
        ("resources", {"memory_per_slot": "16GiB"}, True),
        ("resources", {"memory_per_slot": 1024}, True),
        ("resources", {"memory_per_slot": "16 apples"}, False),
        ("checkpoint", {"every": "90s", "grace_s": 30}, True),
        ("checkpoint", {"every": "soon"}, False),
        ("hung_after", "never", True),
        ("hung_after", "30m", True),
        ("hung_after", "later", False),
        ("elastic", {"min": 1, "maximum": 2}, False),
        ("priority", 101, False),
    ],
)
def test_editors_and_the_service_agree(field: str, value: object, right: bool) -> None:
    file = {"name": "digits", "run": "python digits.py", field: value}
    for check, error in (
        (JobSpec.model_validate, ValidationError),
        (as_an_editor, jsonschema.ValidationError),
    ):
        if right:
            check(file)
            continue
        with pytest.raises(error):
            check(file)


def as_an_editor(file: dict[str, object]) -> None:
    jsonschema.validate(file, SCHEMA)


def test_every_field_has_a_description() -> None:
    schema = json.loads(
        Path(jobfile.__file__).parent.parent.joinpath("docs/reference/job.schema.json").read_text()
    )
    top = [one for one in schema["properties"].values() if "$ref" not in one]
    parts = [one for part in schema["$defs"].values() for one in part.get("properties", {}).values()]
    assert [one for one in top + parts if len(one.get("description", "")) < 20] == []
