"""Check the lengths of source files and functions.

Run as `python tools/check_sizes.py [ROOT]`. It prints one line per finding, and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 400
FUNCTION_LINES = 60
FOLDERS = (
    "headway",
    "service",
    "worker_agent",
    "migrations",
    "tools",
    "examples",
    "benchmarks",
    "tests",
)


def findings(path: str, source: str) -> Iterator[str]:
    """Yield one line for the file and for each function in it that is too long."""
    lines = source.count("\n")
    if lines > FILE_LINES:
        yield f"{path}: {lines} lines, at most {FILE_LINES}; split it by what it decides"
    if path.startswith("migrations/"):
        return  # a migration is one list of statements, whose order must stay visible
    for node in ast.walk(ast.parse(source, filename=path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name}() has {length} lines, at most {FUNCTION_LINES}"


def check(root: Path) -> list[str]:
    """Return every finding under `root`, ordered by path."""
    files = sorted(file for folder in FOLDERS for file in (root / folder).rglob("*.py"))
    return [
        line
        for file in files
        for line in findings(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8"))
    ]


def main() -> int:
    """Print all findings, and return the exit code: 0 without findings, else 1."""
    found = check(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    sys.stdout.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
