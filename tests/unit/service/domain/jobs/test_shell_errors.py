from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from service.domain.jobs.failures import RankExit, judge
from service.domain.jobs.shell_errors import shell_advice

BASH = "first is #!/bin/bash"


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("/bin/sh: 1: set: Illegal option -o pipefail", BASH),
        ("/bin/sh: 2: source: not found", BASH),
        ("/bin/sh: source: not found", BASH),
        ("sh: 3: [[: not found", BASH),
        ("/bin/sh: 1: Bad substitution", BASH),
        ('/bin/sh: 4: Syntax error: "(" unexpected', BASH),
        ("./train.sh: 2: source: not found", "run: bash ./train.sh"),
        ("/bin/sh: 1: .: settings.sh: not found", ". ./settings.sh"),
        ("/bin/sh: 1: ./crlf.sh: not found", "Windows line ends"),
        ("/bin/sh: 1: ./nox.sh: Permission denied", "chmod +x ./nox.sh"),
        ("nox.sh: 2: set: Illegal option -\r", "Windows line ends"),
        ("nox.sh: line 2: $'\\r': command not found", "Windows line ends"),
        (
            "/bin/sh: 1: torchrunn: not found",
            "torchrunn is not in the PATH of the ranks: give its whole path",
        ),
        ("bash: line 3: rsync: command not found", "./rsync for a file of workdir"),
        ("/bin/sh: 1: conda: not found", "run: /opt/conda/envs/NAME/bin/python train.py"),
        ("bash: line 1: conda: command not found", "run: /opt/conda/envs/NAME/bin/python train.py"),
        ("CondaError: Run 'conda init' before 'conda activate'", "/envs/NAME/bin/python train.py"),
        ("ValueError: 1: source", ""),
        ("/bin/sh: 1: cd: can't cd to missing", ""),
    ],
)
def test_an_error_of_a_shell_has_advice(line: str, advice: str) -> None:
    found = shell_advice(("some output", line, ""))
    assert advice in found
    assert bool(found) is bool(advice)


@pytest.mark.parametrize("script", ["source settings.sh", "set -o pipefail\n[[ a == b ]]", "echo ${A^^}"])
def test_what_sh_of_this_machine_prints_is_known(script: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    if Path("/bin/sh").resolve().name != "dash":
        pytest.skip("needs dash")
    assert done.returncode != 0
    lines = tuple(done.stderr.splitlines())
    exit_ = RankExit(
        rank=0,
        exit_code=done.returncode,
        signal=None,
        stopped_by_agent=False,
        completed=False,
        log_tail=lines,
    )
    message = judge([exit_]).message
    assert BASH in message.splitlines()[0]
    assert lines[-1] in message
