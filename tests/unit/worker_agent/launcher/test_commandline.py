from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_agent.launcher.commandline import PythonTarget, python_target, start_method


@pytest.mark.parametrize(
    ("run", "name", "is_module", "arguments"),
    [
        ("python train.py", "train.py", False, ()),
        ("python3 -u src/train.py --epochs 3", "src/train.py", False, ("--epochs", "3")),
        (f"python3.{sys.version_info.minor} train.py 'a b'", "train.py", False, ("a b",)),
        ("python -m pkg.train -x", "pkg.train", True, ("-x",)),
        ("python -u -m pkg", "pkg", True, ()),
    ],
)
def test_a_plain_python_command_is_forked(
    run: str, name: str, is_module: bool, arguments: tuple[str, ...]
) -> None:
    method = start_method(run, {"OMP_NUM_THREADS": "2", "PYTHONPATH": "src", "MY_DATA": "/data"})
    assert method.how == "zygote"
    assert python_target(method.argv) == PythonTarget(name, is_module, arguments)


@pytest.mark.parametrize(
    "run",
    [
        "python train.py | tee log",
        "python train.py > log",
        "cd src && python train.py",
        "python train.py $SEED",
        "python train.py *.txt",
        "python train.py 'open",
        "SEED=1 python train.py",
        "source settings.sh",
        "cd src",
        "time python train.py",
        "python train.py |\n",
    ],
)
def test_what_a_shell_must_read_goes_to_a_shell(run: str) -> None:
    assert start_method(run, {}).argv == ("/bin/sh", "-c", run)


@pytest.mark.parametrize(
    ("first", "argv"),
    [
        ("#!/bin/bash", ("/bin/bash", "-c")),
        ("#!/bin/bash -eu", ("/bin/bash", "-eu", "-c")),
        ("#!/usr/bin/env bash", ("/usr/bin/env", "bash", "-c")),
        ("#! /usr/bin/env python3", ("/usr/bin/env", "python3", "-c")),
        ("#!/usr/bin/env node", ("/bin/sh", "-ec")),
        ("#!", ("/bin/sh", "-ec")),
        ("# !/bin/bash", ("/bin/sh", "-ec")),
    ],
)
def test_several_lines_run_in_the_interpreter_that_the_first_names(first: str, argv: tuple[str, ...]) -> None:
    run = f"{first}\necho 1\n"
    assert start_method(run, {}).argv == (*argv, run)


def test_several_lines_end_at_the_first_that_fails() -> None:
    run = "cd missing\npython b.py\n"
    assert start_method(run, {}).argv == ("/bin/sh", "-ec", run)


@pytest.mark.parametrize(
    "run",
    [
        "python -O train.py",
        "python",
        "python -",
        "python3.2 train.py",
        "/usr/bin/python3 train.py",
        "torchrun t.py",
    ],
)
def test_other_commands_are_executed_as_they_are(run: str) -> None:
    method = start_method(run, {})
    assert (method.how, " ".join(method.argv)) == ("spawn", run)


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONHASHSEED",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "TORCH_LOGS",
        "MKL_NUM_THREADS",
        "PATH",
        "VIRTUAL_ENV",
    ],
)
def test_what_must_be_set_before_the_start_needs_a_new_interpreter(name: str) -> None:
    method = start_method("python train.py", {name: "x"})
    assert method.how == "spawn"
    assert name in method.reason
    assert method.argv == ("python", "train.py")


@given(st.text(max_size=40))
def test_any_text_has_a_way_to_start(run: str) -> None:
    method = start_method(f"x{run}", {})
    assert method.argv
    assert method.how == "spawn"
