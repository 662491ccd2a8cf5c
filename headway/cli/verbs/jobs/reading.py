"""Job files as arguments of verbs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headway import jobfile
from headway.cli.context import Cli
from headway.contract.spec import JobSpec
from headway.contract.spec_warnings import warnings_of


def job_of(
    cli: Cli,
    file: Path,
    replacements: Sequence[str] | None,
    *,
    answer_warns: bool = False,
    sweeps: bool = False,
) -> JobSpec:
    """Return the job of a file, and print warnings about it. With `sweeps`, a file with `sweep` gives a `SweepSpec`.

    With `answer_warns` the service's answer has those about the job, so that only those about the file are printed.
    """
    read = jobfile.read(file, replacements or [], sweeps=sweeps)
    cli.warn([*read.warnings, *([] if answer_warns else warnings_of(read.spec))])
    return read.spec
