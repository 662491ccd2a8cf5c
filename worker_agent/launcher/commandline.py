"""Choice of the start method of a rank, from its command line and environment.

Forking a process that has imported torch takes 40 ms, while a new interpreter takes seconds. But a fork is
equivalent only if the command is a Python program and no variable must be set before the interpreter starts.
Agent and launcher both use this module, so it imports only the standard library.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

How = Literal["zygote", "spawn"]

_SHELL_CHARACTERS = frozenset("|&;<>()$`*?[]#~!{}\n")
_BUILT_IN = frozenset(
    {
        ".",
        ":",
        "alias",
        "bg",
        "cd",
        "command",
        "eval",
        "exec",
        "exit",
        "export",
        "fg",
        "jobs",
        "local",
        "read",
    }
    | {
        "readonly",
        "return",
        "set",
        "shift",
        "source",
        "time",
        "times",
        "trap",
        "type",
        "ulimit",
        "umask",
        "unset",
        "wait",
    }
)
"""Commands that only a shell has. Others, such as `echo`, are programs too."""
_TAKES_TEXT = re.compile(r"(?:ba|da|k|z)?sh|python[\d.]*")
_PYTHON_NAMES = frozenset({"python", "python3", f"python3.{sys.version_info.minor}"})
_READ_AT_START = (
    "LD_",
    "PYTHON",
    "OMP_",
    "KMP_",
    "GOMP_",
    "MKL_",
    "OPENBLAS_",
    "TORCH",
    "PYTORCH",
    "MALLOC_",
    "GLIBC_",
    "LC_",
    "LANG",
    "BLIS_",
    "NPY_",
    "VECLIB_",
    "NUMEXPR_",
    "ATEN_",
    "DNNL_",
    "ONEDNN_",
    "MKLDNN_",
    "KINETO_",
)
"""Prefixes of variables that the interpreter or C code reads once. The launcher knows those that Python code reads."""
_READ_LATER = frozenset({"OMP_NUM_THREADS", "PYTHONPATH", "PYTHONUNBUFFERED"})
"""Exceptions to the prefixes: the forked process applies these itself."""
_CHOOSES_INTERPRETER = frozenset({"PATH", "VIRTUAL_ENV", "CONDA_PREFIX"})


@dataclass(frozen=True, slots=True)
class StartMethod:
    """Start method and a short reason. `argv` can be executed with either method."""

    how: How
    reason: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """Program of a Python command line: the file `name`, or the module `name`."""

    name: str
    is_module: bool
    arguments: tuple[str, ...]


def start_method(run: str, job_env: Mapping[str, str]) -> StartMethod:
    """Choose how to start `run`, given the variables that the job sets in its environment."""
    if interpreter := _named_interpreter(run):
        return StartMethod("spawn", "the command names its interpreter", (*interpreter, "-c", run))
    argv = _split(run)
    if argv is None:
        # The script ends at its first failed line: the next one would work in the wrong folder or on no data.
        option = "-ec" if "\n" in run.strip() else "-c"
        return StartMethod("spawn", "the command needs a shell", ("/bin/sh", option, run))
    if python_target(argv) is None:
        return StartMethod("spawn", "not a plain Python command", argv)
    blocking = next((name for name in sorted(job_env) if _matters_before_start(name)), None)
    if blocking is not None:
        return StartMethod("spawn", f"{blocking} must be set before the interpreter starts", argv)
    return StartMethod("zygote", "a plain Python command", argv)


def python_target(argv: Sequence[str]) -> PythonTarget | None:
    """Return the Python program that `argv` runs.

    Return None if `argv` is not `python [-u] FILE …` or `python [-u] -m MODULE …`.
    """
    if not argv or argv[0] not in _PYTHON_NAMES:
        return None
    rest = list(argv[1:])
    if rest[:1] == ["-u"]:
        rest.pop(0)
    is_module = rest[:1] == ["-m"]
    if is_module:
        rest.pop(0)
    if not rest or rest[0].startswith("-"):
        return None
    return PythonTarget(rest[0], is_module, tuple(rest[1:]))


def _named_interpreter(run: str) -> tuple[str, ...]:
    """Return the words behind `#!` in the first of several lines; empty without one that takes a script by `-c`."""
    first, newline, _ = run.partition("\n")
    words = first.removeprefix("#!").split() if newline and first.startswith("#!") else []
    named = next((one for one in reversed(words) if not one.startswith("-")), "")
    return tuple(words) if _TAKES_TEXT.fullmatch(named.rpartition("/")[2]) else ()


def _split(run: str) -> tuple[str, ...] | None:
    if _SHELL_CHARACTERS.intersection(run):
        return None
    try:
        argv = tuple(shlex.split(run))
    except ValueError:  # unclosed quotation mark: the shell reports it in familiar words
        return None
    if not argv or "=" in argv[0] or argv[0] in _BUILT_IN:
        return None
    return argv


def _matters_before_start(name: str) -> bool:
    if name in _CHOOSES_INTERPRETER:
        return True
    return name.startswith(_READ_AT_START) and name not in _READ_LATER
