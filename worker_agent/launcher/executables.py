"""Causes why a program cannot be executed, in words: the kernel says "No such file" about a file that is there."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

_HEAD_BYTES = 512
_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
"""Byte-order marks of UTF-8 and UTF-16."""
_ENVIRONMENTS = frozenset({"conda", "mamba", "micromamba", "pyenv"})
"""Programs that choose a Python, usually by a shell that was set up for them."""


def why_not_executable(program: str, cwd: str, search_path: str, *, in_image: bool = False) -> str:
    """Return why `program` cannot be executed in `cwd`; empty if nothing is wrong as far as the file shows.

    With `in_image`, only files of the working folder are known: programs and interpreters are those of an image.
    """
    if "/" not in program:
        return "" if in_image else _why_not_in_path(program, cwd, search_path)
    if in_image and program.startswith("/"):
        return ""
    path = Path(cwd) / program
    if not path.exists():
        return (
            f"{program} is not in the working folder"
            if program[0] != "/"
            else f"{program} is not on this node"
        )
    if path.is_dir():
        return f"{program} is a folder"
    head = _head_of(path)
    if not os.access(path, os.X_OK):
        runner = _runner(program, head)
        return f"{program} is not executable: chmod +x {shlex.quote(program)}, or write run: {runner}"
    return _why_no_program(program, head, cwd, search_path, in_image=in_image)


def _why_not_in_path(program: str, cwd: str, search_path: str) -> str:
    found = shutil.which(program, path=search_path)
    if found is not None:
        return _why_no_program(program, _head_of(Path(found)), cwd, search_path, in_image=False)
    missing = f"the command {program!r} was not found on this node, whose PATH for the job is {search_path!r}"
    if (Path(cwd) / program).is_file():
        return f"{missing}; the working folder has a file of this name: write run: ./{program}"
    if program in _ENVIRONMENTS:
        return f"{missing}; name the Python of the environment instead, such as run: /opt/conda/envs/NAME/bin/python train.py"
    return f"{missing}; give its whole path, or install it on the node"


def _why_no_program(program: str, head: bytes | None, cwd: str, search_path: str, *, in_image: bool) -> str:
    if head is None:
        return ""
    if not head:
        return f"{program} is empty"
    if head.startswith(_MARKS):
        return (
            f"{program} begins with a byte-order mark, which hides its #! line: save it as UTF-8 without one"
        )
    if not head.startswith(b"#!"):
        if b"\0" in head:  # a program of some kind, which the kernel may know
            return ""
        return f"{program} has no #! line: begin it with one such as #!/bin/sh, or write run: {_runner(program, head)}"
    first, newline, _ = head.partition(b"\n")
    if newline and first.endswith(b"\r"):
        return (
            f"{program} has Windows line ends, and the kernel looks for an interpreter with one in its name: "
            f"sed -i 's/\\r$//' {shlex.quote(program)}"
        )
    return "" if in_image else _why_no_interpreter(program, _words(first), cwd, search_path)


def _why_no_interpreter(program: str, words: list[str], cwd: str, search_path: str) -> str:
    if not words:
        return f"{program} names no interpreter behind #!"
    interpreter = words[0]
    if not (Path(cwd) / interpreter).exists():
        return f"the interpreter {interpreter} that {program} names is not on this node"
    if not os.access(Path(cwd) / interpreter, os.X_OK):
        return f"the interpreter {interpreter} that {program} names is not executable"
    named = next((one for one in words[1:] if not one.startswith("-") and "=" not in one), None)
    if Path(interpreter).name == "env" and named and shutil.which(named, path=search_path) is None:
        return f"the interpreter {named} that {program} names was not found on this node, in PATH {search_path!r}"
    return ""


def _head_of(path: Path) -> bytes | None:
    """Return the first bytes of the file; None if they cannot be read."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return None


def _words(first: bytes) -> list[str]:
    return first.removeprefix(b"#!").decode(errors="replace").split()


def _runner(program: str, head: bytes | None) -> str:
    """Return a command that runs the script without its executable bit and its #! line."""
    words = _words(head.partition(b"\n")[0]) if head is not None and head.startswith(b"#!") else []
    named = [Path(one).name for one in words if not one.startswith("-")]
    guess = "python" if program.endswith(".py") else "sh"
    runner = next((one for one in named if one != "env"), guess)
    return f"{runner} {shlex.quote(program)}"
