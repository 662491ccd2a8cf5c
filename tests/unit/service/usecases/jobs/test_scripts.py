"""The script that a job's command runs, which submission looks for in the bundle."""

from __future__ import annotations

import pytest

from service.usecases.jobs.submit import script_of


@pytest.mark.parametrize(
    ("run", "script"),
    [
        ("python train.py --epochs 3", "train.py"),
        ("python3 ./pkg/train.py", "pkg/train.py"),
        ("python 'my train.py'", "my train.py"),
        ("python -m pkg.train", None),
        ("python -u train.py", None),
        ("python /abs/train.py", None),
        ("python ~/train.py", None),
        ("python $SCRIPT.py", None),
        ("python train", None),
        ("python", None),
        ("bash run.sh", None),
        ("python 'unclosed", None),
        ("cd x && python train.py", None),
    ],
)
def test_the_script_that_a_command_runs(run: str, script: str | None) -> None:
    assert script_of(run) == script
