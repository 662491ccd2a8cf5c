"""Run a test again and again beside busy cores, until it fails. Run as `python -m tools.stress TEST [--times N]`.

The files and the output of the first failure are kept.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy during the block."""
    processes = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    for one in processes:
        one.start()
    try:
        yield
    finally:
        for one in processes:
            one.terminate()
            one.join()


def first_failure(test: str, times: int, folder: Path) -> int | None:
    """Run the test up to `times` times, and return the number of the first run that failed; None if all passed.

    The failed run leaves `output.txt` and pytest's folder `files` in `folder`.
    """
    for number in range(1, times + 1):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = [sys.executable, "-m", "pytest", test, "-q", "-x", f"--basetemp={folder / 'files'}"]
        with (folder / "output.txt").open("wb") as output:
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            return number
        print(f"{number} of {times} passed", flush=True)  # noqa: T201
    return None


def main() -> int:
    """Run the test, and return 1 if it failed."""
    parser = argparse.ArgumentParser(description="Run a test beside busy cores until it fails.")
    parser.add_argument("test", help="a test as pytest names it")
    parser.add_argument("--times", type=int, default=50, help="runs at most (default 50)")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headway-stress-"))
    with busy_cores():
        failed = first_failure(asked.test, asked.times, folder / "run")
    if failed is None:
        shutil.rmtree(folder)
        return 0
    print(f"run {failed} failed; its output and files are in {folder / 'run'}")  # noqa: T201
    return 1


def _spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    sys.exit(main())
