"""A data folder that leaves no process behind, and a script to run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.local.footprint import kill_all

SCRIPT = """\
import os, pathlib, signal, sys, threading
folder = pathlib.Path(sys.argv[1])
(folder / f"started-{os.environ['HEADWAY_GENERATION']}").touch()
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
while not (folder / "finish").exists():
    threading.Event().wait(0.05)
print("finished")
"""


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    yield folder
    kill_all(folder)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A working folder with a script that runs until it is told to finish."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    return folder
