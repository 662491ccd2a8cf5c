"""Options, output and termination of all benchmarks.

A benchmark is a module of this folder whose docstring shows its command with `--json`. It begins and ends like this:

    def main() -> None:
        parser = benchmark_parser(__doc__, quick="two kills only")
        arguments = parser.parse_args()
        with temporary_folder() as folder: ...
        show(result, arguments)

    if __name__ == "__main__":
        run_benchmark(main)

With `--quick` a benchmark does the same work on small inputs within seconds, and prints the same keys. This shows that it
works; its figures mean nothing. `tests/integration/benchmarks/test_quick.py` runs each benchmark that way.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from headway.errors import HeadwayError
from headway.local.guard import Guard
from service.simulation.model.world import BadInput

_PREFIX = "headway-benchmark-"
FOLDER = Path(__file__).parent
_guard: Guard | None = None


def names() -> list[str]:
    """Return the names of all benchmarks: the modules and packages whose text contains their command and `--json`."""
    files = {file.stem: file for file in FOLDER.glob("[a-z]*.py")}
    files |= {file.parent.name: file for file in FOLDER.glob("*/__main__.py")}
    found = []
    for name, file in sorted(files.items()):
        text = file.read_text(encoding="utf-8")
        if f"-m benchmarks.{name} " in text and "--json" in text:
            found.append(name)
    return found


def benchmark_parser(description: str | None, *, quick: str) -> argparse.ArgumentParser:
    """Return a parser with `--json` and `--quick`.

    Args:
        description: docstring of the benchmark, which explains its figures.
        quick: extent of a quick run.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--quick", action="store_true", help=f"seconds instead of minutes: {quick}")
    return parser


def show(result: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    """Print a result as JSON: on one line with `--json`, else indented."""
    print(json.dumps(result, indent=None if arguments.json else 2))


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a folder that only this user may enter, and remove it at the end.

    Under `run_benchmark`, it is removed even if the benchmark is killed.
    """
    if _guard is None:
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
            yield Path(name).resolve()
    else:
        with _guard.temporary_folder(_PREFIX) as folder:
            yield folder


def shared_folder(folder: Path) -> Path:
    """Create a folder inside `folder` that all ranks may write to, even if each job has its own user."""
    folder.chmod(0o711)
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    return shared


def pool(processes: int) -> ProcessPoolExecutor:
    """Return a pool of spawned worker processes. The guard does not see forked ones, which would outlive a killed benchmark."""
    return ProcessPoolExecutor(max(processes, 1), mp_context=multiprocessing.get_context("spawn"))


def run_benchmark(main: Callable[[], None]) -> None:
    """Run a benchmark as a program, and end all processes that it started, however it ends.

    SIGINT, SIGTERM and SIGHUP unwind the stack; after SIGKILL, the guard cleans up. An expected error is printed without a
    stack trace, and the exit code is 1.
    """
    global _guard
    with Guard() as _guard:
        _unwind_on_signals()
        try:
            main()
        except (HeadwayError, BadInput, RuntimeError) as error:
            name = Path(sys.argv[0]).stem
            raise SystemExit(f"benchmarks.{name} failed: {error}") from error


def _unwind_on_signals() -> None:
    """Unwind the stack at the first signal, and ignore later signals meanwhile."""

    def stop(number: int, _frame: object) -> NoReturn:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        sys.stderr.write(f"{signal.Signals(number).name}: stopping what was started\n")
        raise SystemExit(128 + number)

    for number in _SIGNALS:
        signal.signal(number, stop)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
