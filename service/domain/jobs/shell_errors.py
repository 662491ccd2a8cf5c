"""Advice on errors that a shell printed: which shell it was, and how to write the command for it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LINE = re.compile(r"^(?P<script>[^\s:]+): (?:(?:line )?\d+: )?(?P<error>.+)$")
_BASH_ONLY = re.compile(
    r"(?:source|\[\[|shopt|declare|typeset|let|mapfile|readarray|pushd|popd|time|function|select): not found"
    r"|set: Illegal option -o|Illegal option -o pipefail|set: .*invalid option name"
    r"|Bad substitution|Syntax error: (?:\"\(\"|redirection) unexpected|Bad for loop variable"
)
"""Errors of dash and BusyBox about commands and syntax of bash."""
_DOT = re.compile(
    r"^\.: (?P<file>[^/\s]+): (?:not found|can't open|No such file)|^\.: Can't open (?P<other>[^/\s]+)"
)
_RETURN = re.compile(r"\r(?::|'|$)|\\r'")
_NOT_FOUND = re.compile(r"^(?P<program>\S*/\S*): not found$")
_ABSENT = re.compile(r"^(?P<program>[\w.+-]+): (?:command )?not found$")
_ENVIRONMENTS = frozenset({"conda", "mamba", "micromamba", "activate", "pyenv"})
_NOT_SET_UP = re.compile(r"^CondaError: Run 'conda init'")
_PYTHON_OF_ENVIRONMENT = (
    "ranks have no shell that was set up for it: name the Python of the environment instead, such as "
    "run: /opt/conda/envs/NAME/bin/python train.py (see `conda env list` on the node)"
)
_DENIED = re.compile(r"^(?P<program>\S*/\S*): Permission denied$")
_SH = frozenset({"/bin/sh", "sh"})
_LAST = 5
"""Lines at the end of the output in which an error of a shell explains the exit."""


def shell_advice(log_tail: Sequence[str]) -> str:
    """Return what a user should know about the last error of a shell in the output; empty if there is none."""
    lines = [line for line in log_tail if line.strip()][-_LAST:]
    return next((advice for line in reversed(lines) if (advice := _advice(line))), "")


def _advice(line: str) -> str:
    if _NOT_SET_UP.match(line):
        return _PYTHON_OF_ENVIRONMENT
    found = _LINE.match(line.rstrip("\n"))
    if found is None:
        return ""
    script, error = found["script"], found["error"]
    own = script in _SH
    if _RETURN.search(error):
        return "the script has Windows line ends: sed -i 's/\\r$//' FILE"
    if _BASH_ONLY.search(error):
        if own:
            return (
                "run is executed by /bin/sh, which is not bash: write it as several lines (run: |) of which the "
                "first is #!/bin/bash"
            )
        return f"{script} is executed by sh, which is not bash: begin it with #!/bin/bash, or write run: bash {script}"
    if file := _DOT.match(error):
        name = file["file"] or file["other"]
        return f"sh looks for {name} in PATH: write . ./{name}"
    return _about_program(error)


def _about_program(error: str) -> str:
    """Return advice on a program that the shell could not execute; empty for other errors."""
    if gone := _NOT_FOUND.match(error):
        return f"if {gone['program']} is there, the interpreter in its #! line is not, or the file has Windows line ends"
    if absent := _ABSENT.match(error):
        program = absent["program"]
        if program in _ENVIRONMENTS:
            return f"{program} is not in the PATH of the ranks, and {_PYTHON_OF_ENVIRONMENT}"
        return f"{program} is not in the PATH of the ranks: give its whole path, or ./{program} for a file of workdir"
    if denied := _DENIED.match(error):
        return f"if {denied['program']} is a script: chmod +x {denied['program']}, or write sh {denied['program']}"
    return ""
