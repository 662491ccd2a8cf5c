from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from worker_agent.launcher.executables import why_not_executable

BODY = b"echo ran\n"
PATH = "/usr/bin:/bin"


def script(folder: Path, name: str, content: bytes, mode: int = 0o755) -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return f"./{name}"


@pytest.mark.parametrize(
    ("name", "content", "mode", "cause", "remedy"),
    [
        ("crlf.sh", b"#!/bin/sh\r\n" + BODY, 0o755, "Windows line ends", "sed -i"),
        ("bare.sh", BODY, 0o755, "no #! line", "run: sh ./bare.sh"),
        ("bare.py", b"print(1)\n", 0o755, "no #! line", "run: python ./bare.py"),
        (
            "nox.sh",
            b"#!/bin/sh\n" + BODY,
            0o644,
            "not executable",
            "chmod +x ./nox.sh, or write run: sh ./nox.sh",
        ),
        ("nox", b"#!/usr/bin/env -S python3 -u\n", 0o644, "not executable", "run: python3 ./nox"),
        ("bom.sh", b"\xef\xbb\xbf#!/bin/sh\n" + BODY, 0o755, "byte-order mark", "without one"),
        ("wide.sh", "#!/bin/sh\n".encode("utf-16"), 0o755, "byte-order mark", "UTF-8"),
        ("away.sh", b"#!/opt/none/python3\n", 0o755, "/opt/none/python3", "not on this node"),
        ("env.sh", b"#!/usr/bin/env python9.9\n", 0o755, "python9.9", "not found on this node"),
        ("empty.sh", b"", 0o755, "empty", ""),
        ("none.sh", b"#!\n", 0o755, "no interpreter", ""),
    ],
)
def test_a_script_that_the_kernel_refuses_has_its_cause_named(
    tmp_path: Path, name: str, content: bytes, mode: int, cause: str, remedy: str
) -> None:
    program = script(tmp_path, name, content, mode)
    said = why_not_executable(program, str(tmp_path), PATH)
    assert cause in said
    assert remedy in said
    assert name in said
    if name != "env.sh":  # env itself can be executed
        with pytest.raises(OSError):  # noqa: PT011 - whatever the kernel says
            subprocess.run([program], cwd=tmp_path, check=False)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("good.sh", b"#!/bin/sh\n" + BODY),
        ("a b/good.sh", b"#!/bin/sh\n" + BODY),
        ("spaced.sh", b"#! /usr/bin/env -S A=1 sh -e\n" + BODY),
        ("true", Path("/bin/true").read_bytes()),
    ],
)
def test_a_program_that_the_kernel_executes_has_no_cause(tmp_path: Path, name: str, content: bytes) -> None:
    program = script(tmp_path, name, content)
    assert why_not_executable(program, str(tmp_path), PATH) == ""
    assert subprocess.run([program], cwd=tmp_path, check=False, capture_output=True).returncode == 0


def test_a_program_that_is_away_is_told_from_one_beside(tmp_path: Path) -> None:
    script(tmp_path, "train.sh", b"#!/bin/sh\n" + BODY)
    cwd = str(tmp_path)
    assert "write run: ./train.sh" in why_not_executable("train.sh", cwd, PATH)
    assert "'/opt/x:$PATH'" in why_not_executable("sh", cwd, "/opt/x:$PATH")
    assert "not in the working folder" in why_not_executable("./other.sh", cwd, PATH)
    assert "is a folder" in why_not_executable("./", cwd, PATH)
    assert why_not_executable("sh", cwd, PATH) == ""


def test_of_an_image_only_files_of_the_working_folder_are_judged(tmp_path: Path) -> None:
    cwd = str(tmp_path)
    crlf = script(tmp_path, "crlf.sh", b"#!/bin/sh\r\n" + BODY)
    away = script(tmp_path, "away.sh", b"#!/opt/none/python3\n")
    assert "Windows" in why_not_executable(crlf, cwd, PATH, in_image=True)
    for program in (away, "/opt/none/x", "none"):
        assert why_not_executable(program, cwd, PATH, in_image=True) == ""
