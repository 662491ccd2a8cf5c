"""How a rank is started, decided from its command line alone.

Forking a process that has torch imported takes 40 ms where a new interpreter takes seconds, but it is
only the same thing when the command is a Python program and nothing has to be set before the interpreter
starts. Standard library only: agent and launcher both use it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

How = Literal["zygote", "spawn"]

_SHELL_CHARACTERS = frozenset("|&;<>()$`*?[]#~!{}\n")
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
)
_READ_LATER = frozenset({"OMP_NUM_THREADS", "PYTHONPATH", "PYTHONUNBUFFERED"})
"""Exceptions to the prefixes: the fork applies these itself."""
_CHOOSES_INTERPRETER = frozenset({"PATH", "VIRTUAL_ENV", "CONDA_PREFIX"})


@dataclass(frozen=True, slots=True)
class StartMethod:
    """The decision, and why in a few words. `argv` can be executed whatever `how` says."""

    how: How
    reason: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """What a Python command line runs: the file at `name`, or the module `name`."""

    name: str
    is_module: bool
    arguments: tuple[str, ...]


def start_method(run: str, job_env: Mapping[str, str]) -> StartMethod:
    """Decide how to start `run` with what the job sets in its environment."""
    argv = _split(run)
    if argv is None:
        return StartMethod("spawn", "the command needs a shell", ("/bin/sh", "-c", run))
    if python_target(argv) is None:
        return StartMethod("spawn", "not a plain Python command", argv)
    blocking = next((name for name in sorted(job_env) if _matters_before_start(name)), None)
    if blocking is not None:
        return StartMethod("spawn", f"{blocking} must be set before the interpreter starts", argv)
    return StartMethod("zygote", "a plain Python command", argv)


def python_target(argv: Sequence[str]) -> PythonTarget | None:
    """What `argv` runs, or None when it is not `python [-u] FILE …` or `python [-u] -m MODULE …`."""
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


def _split(run: str) -> tuple[str, ...] | None:
    if _SHELL_CHARACTERS.intersection(run):
        return None
    try:
        argv = tuple(shlex.split(run))
    except ValueError:  # an open quotation mark: the shell's message is the one that people know
        return None
    if not argv or "=" in argv[0]:
        return None
    return argv


def _matters_before_start(name: str) -> bool:
    if name in _CHOOSES_INTERPRETER:
        return True
    return name.startswith(_READ_AT_START) and name not in _READ_LATER
