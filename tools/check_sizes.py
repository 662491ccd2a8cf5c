"""Ask for a reason where a source file or a function is long.

Run as `python tools/check_sizes.py [ROOT]`. It prints one line per finding, and exits with 1 if there is any. A file or a
function that is long for a reason says it in one comment, `# long: <reason>`: among the first lines of the file, or in the
line above the function.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 700
FUNCTION_LINES = 80
REASON = "# long: "
HEAD_LINES = 30
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
    """Yield one line for the file and for each function in it that is long and gives no reason."""
    lines = source.splitlines()
    if len(lines) > FILE_LINES and not any(line.startswith(REASON) for line in lines[:HEAD_LINES]):
        yield f"{path}: {len(lines)} lines, over {FILE_LINES}; split it by what it decides, or say why with `{REASON}`"
    if path.startswith("migrations/"):
        return  # a migration is one list of statements, whose order must stay visible
    for node in ast.walk(ast.parse(source, filename=path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES and not line_above(lines, node).startswith(REASON):
                yield f"{path}:{node.lineno}: {node.name}() has {length} lines, over {FUNCTION_LINES}; say why above it"


def line_above(lines: list[str], function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the line above a function and its decorators, which is empty at the start of a file."""
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return lines[first - 2].lstrip() if first > 1 else ""


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
