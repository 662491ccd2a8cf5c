"""Flags, results and ends of all benchmarks.

A benchmark is a module of this folder whose docstring shows how to run it with the flag that prints JSON. It begins and ends like this:

    def main() -> None:
        parser = benchmark_parser(__doc__, quick="two kills only")
        arguments = parser.parse_args()
        with temporary_folder() as folder: ...
        show(result, arguments)

    if __name__ == "__main__":
        run_benchmark(main)

With `--quick` a benchmark does all that it does otherwise on less, within seconds, and prints the same keys: whether it works can be seen,
how fast it is cannot. `tests/integration/benchmarks/test_quick.py` runs each of them like that.
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
    """Names of all benchmarks: a module is one if its text says how to run it, and for JSON."""
    found = []
    for file in sorted(FOLDER.glob("[a-z]*.py")):
        text = file.read_text()
        if f"-m benchmarks.{file.stem} " in text and "--json" in text:
            found.append(file.stem)
    return found


def benchmark_parser(description: str | None, *, quick: str) -> argparse.ArgumentParser:
    """Return a parser that knows `--json` and `--quick`.

    Args:
        description: the docstring of the benchmark, which says what its figures mean.
        quick: what a quick run leaves out.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--quick", action="store_true", help=f"seconds instead of minutes: {quick}")
    return parser


def show(result: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    """Print a result: one line with `--json`, else for people."""
    print(json.dumps(result, indent=None if arguments.json else 2))


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for the run that only this user may enter. With `run_benchmark`, it is removed even if the benchmark is killed."""
    if _guard is None:
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
            yield Path(name).resolve()
    else:
        with _guard.temporary_folder(_PREFIX) as folder:
            yield folder


def shared_folder(folder: Path) -> Path:
    """A folder in a temporary one that ranks may write to: an agent that is root runs each job as a user of its own."""
    folder.chmod(0o711)
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    return shared


def pool(processes: int) -> ProcessPoolExecutor:
    """Worker processes that are started anew: a fork would outlive a killed benchmark unseen by its guard."""
    return ProcessPoolExecutor(max(processes, 1), mp_context=multiprocessing.get_context("spawn"))


def run_benchmark(main: Callable[[], None]) -> None:
    """Run a benchmark as a program. Whatever ends it ends all that it has started.

    Ctrl-C, SIGTERM and SIGHUP unwind it in order. SIGKILL has the guard do the rest. An error that the benchmark knows is said
    without a stack trace; the exit code is 1.
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
    """Let the first signal unwind the program, and later ones not disturb the stopping."""

    def stop(number: int, _frame: object) -> NoReturn:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        sys.stderr.write(f"{signal.Signals(number).name}: stopping what was started\n")
        raise SystemExit(128 + number)

    for number in _SIGNALS:
        signal.signal(number, stop)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
