"""Checks of `headway doctor --gpu`: the findings of the self-test, which runs in a process with torch."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from headway.contract.views.diagnosis import Check, Level

_COMMAND = (sys.executable, "-m", "headway.selftest")


def self_test_checks(command: Sequence[str] = _COMMAND) -> Iterator[Check]:
    """Run the self-test, and yield each finding as it comes. `command` is its command line."""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None, "it was made with a pipe"
        for one in map(json.loads, process.stdout):
            level = Level.OK if one["held"] else Level.FAIL
            yield Check(name=one["name"], level=level, found=one["found"], why=one["why"], hint=one["hint"])
        if process.wait():
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
            yield Check(
                name="self-test",
                level=Level.FAIL,
                found=f"It did not run to its end: {last[0]}.",
                why="Changes of size on this machine are not tested.",
                hint="The test needs torch: pip install 'headway[train]' in this environment.",
            )
