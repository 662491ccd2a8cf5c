from __future__ import annotations

import pytest
from pydantic import ValidationError

from headway.contract.spec import JobSpec


def spec(**fields: object) -> JobSpec:
    return JobSpec.model_validate({"name": "a", "run": "python a.py", **fields})


@pytest.mark.parametrize(
    ("python", "file"),
    [
        ({}, None),
        ({"requirements": "./sub/requirements.txt"}, "sub/requirements.txt"),
        ({"requirements": "pyproject.toml"}, "pyproject.toml"),
        ({"lock": "sub/uv.lock"}, "sub/uv.lock"),
    ],
)
def test_python_names_a_file_of_the_working_folder(python: dict[str, str], file: str | None) -> None:
    assert spec(python=python).python.file == file


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"python": {"requirements": "a.txt", "lock": "uv.lock"}}, "name one file"),
        ({"python": {"requirements": "/etc/passwd"}}, "leaves the working folder"),
        ({"python": {"requirements": "../a.txt"}}, "leaves the working folder"),
        ({"python": {"requirements": "."}}, "no file"),
        ({"python": {"lock": "poetry.lock"}}, "no lock file of uv"),
        ({"python": {"conda": "a.yml"}}, "conda"),
        ({"python": {"requirements": "a.txt"}, "image": "a:1"}, "exclude each other"),
    ],
)
def test_wrong_python_is_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        spec(**fields)
