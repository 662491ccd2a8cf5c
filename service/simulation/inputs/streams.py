"""Job streams from CSV files: prepared workloads, published traces, and exports from Slurm.

The columns of a file determine its form:

- A workload has `name, time, application, num_replicas`, and possibly others; `time` is in seconds.
- A trace in Philly's form has `timestamp, duration, num_gpus`.
- A trace in ElasticFlow's form has `job_id, submission_time, duration, num_gpu`; times are in seconds.
- An export of Slurm's `sacct` has commas or `--parsable2` pipes. Its columns are `JobID, Submit`, either
  `Elapsed` or both `Start` and `End`, and `AllocTRES` or `ReqTRES`, which count the GPUs (`gres/gpu=4`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from service.simulation.model.world import BadInput

_LATEST_S = 1e10
_LONGEST_S = 1e9
_MOST_SLOTS = 1_000_000
_GPUS = re.compile(r"(?:^|,)gres/gpu=(\d+)(?:,|$)")
_GPUS_OF_TYPE = re.compile(r"(?:^|,)gres/gpu:[^=,]+=(\d+)")
_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Job of a stream, from a row of the file (the header is row 1).

    Attributes:
        slots: Number of slots that the job requested.
        slots_column: Column of the file with that number.
        application: Application whose profiles describe the job; None: only a law applies.
        duration_s: Time that the job ran on its slots; None where profiles determine it.
        never: Reason why the job can never run; None: it can.
    """

    id: str
    row: int
    submit_s: float
    slots: int
    slots_column: str
    application: str | None = None
    duration_s: float | None = None
    never: str | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    """Row of a file, with its number for error messages."""

    file: Path
    number: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        return self.cells[column].strip()

    def wrong(self, column: str, why: str) -> BadInput:
        return BadInput(f"{self.file}: row {self.number}, column {column}: {why}")

    def number_of(self, column: str, limit: float) -> float:
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(column, f"{text!r} is not a number") from None
        if not 0.0 <= value <= limit:
            raise self.wrong(column, f"{text} is not from 0 to {limit:g}")
        return value

    def slots(self, column: str) -> int:
        value = self.number_of(column, _MOST_SLOTS)
        if value != int(value) or value < 1:
            raise self.wrong(column, f"{self.text(column)} is not a whole number of at least 1")
        return int(value)

    def date_s(self, column: str) -> float:
        text = self.text(column)
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise self.wrong(column, f"{text!r} is not a date; give one like 2024-05-01T12:00:00") from None
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def read_stream(file: Path) -> tuple[Submission, ...]:
    """Return the jobs of a file in the order of their submissions; dates count from the first. Raise BadInput."""
    header, rows = _rows(file)
    reader, dated = _reader(file, header)
    jobs = sorted((reader(row) for row in rows if not _is_step(row)), key=lambda job: job.submit_s)
    if not jobs:
        raise BadInput(f"{file}: has no jobs")
    rows_by_id: dict[str, int] = {}
    for job in jobs:
        if job.id in rows_by_id:
            first, second = sorted((rows_by_id[job.id], job.row))
            raise BadInput(f"{file}: row {second}: the job {job.id!r} is a duplicate of row {first}")
        rows_by_id[job.id] = job.row
    start_s = jobs[0].submit_s if dated else 0.0
    return tuple(replace(job, submit_s=job.submit_s - start_s) for job in jobs)


def _is_step(row: _Row) -> bool:
    """Return whether the row is one of the steps that sacct lists below their job."""
    return "." in row.cells.get("JobID", row.cells.get("JobIDRaw", ""))


def _rows(file: Path) -> tuple[list[str], Iterator[_Row]]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInput(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{file}: is not UTF-8 text") from error
    lines = text.splitlines()
    if not lines:
        raise BadInput(f"{file}: is empty")
    delimiter = "|" if "|" in lines[0] else ","
    try:
        header, *cells = list(csv.reader(lines, delimiter=delimiter))
    except csv.Error as error:
        raise BadInput(f"{file}: is not a valid CSV file: {error}") from error
    header = [name.strip() for name in header]
    return header, _cells(file, header, cells)


def _cells(file: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[_Row]:
    for number, row in enumerate(rows, start=2):
        if row:
            if len(row) < len(header):
                raise BadInput(f"{file}: row {number}, column {header[len(row)]}: is missing")
            yield _Row(file, number, dict(zip(header, row, strict=False)))


def _reader(file: Path, header: Sequence[str]) -> tuple[Callable[[_Row], Submission], bool]:
    """Return the reader of rows with these columns, and whether their times count from the first row."""
    known = set(header)
    if "JobID" in known or "JobIDRaw" in known:
        return _sacct_reader(file, known), True
    forms: Mapping[tuple[str, ...], tuple[Callable[[_Row], Submission], bool]] = {
        ("name", "time", "application", "num_replicas"): (_workload, False),
        ("timestamp", "duration", "num_gpus"): (_philly, True),
        ("job_id", "submission_time", "duration", "num_gpu"): (_elasticflow, True),
    }
    nearest = max(forms, key=lambda columns: len(known.intersection(columns)))
    missing = [column for column in nearest if column not in known]
    if len(missing) == len(nearest):
        choices = "; ".join(", ".join(columns) for columns in forms)
        raise BadInput(
            f"{file}: row 1: has no known set of columns; give one of: {choices}; or JobID, Submit, ... of sacct"
        )
    if missing:
        raise BadInput(f"{file}: row 1: has no column {missing[0]!r}; required are {', '.join(nearest)}")
    return forms[nearest]


def _workload(row: _Row) -> Submission:
    return Submission(
        id=row.text("name") or f"job-{row.number}",
        row=row.number,
        submit_s=row.number_of("time", _LATEST_S),
        slots=row.slots("num_replicas"),
        slots_column="num_replicas",
        application=row.text("application"),
    )


def _philly(row: _Row) -> Submission:
    return _timed(row, f"job-{row.number}", row.date_s("timestamp"), "num_gpus")


def _elasticflow(row: _Row) -> Submission:
    return _timed(row, row.text("job_id"), row.number_of("submission_time", _LATEST_S), "num_gpu")


def _timed(row: _Row, job_id: str, submit_s: float, slots_column: str) -> Submission:
    duration_s = row.number_of("duration", _LONGEST_S)
    return Submission(
        id=job_id,
        row=row.number,
        submit_s=submit_s,
        slots=row.slots(slots_column),
        slots_column=slots_column,
        duration_s=duration_s,
        never=None if duration_s > 0 else "it ran for 0 s, so its work is unknown",
    )


def _sacct_reader(file: Path, known: set[str]) -> Callable[[_Row], Submission]:
    if "Submit" not in known:
        raise BadInput(f"{file}: row 1: has no column 'Submit'")
    if "Elapsed" not in known and not {"Start", "End"} <= known:
        raise BadInput(f"{file}: row 1: has no column 'Elapsed', nor both 'Start' and 'End'")
    if not {"AllocTRES", "ReqTRES"} & known:
        raise BadInput(f"{file}: row 1: has no column 'AllocTRES' or 'ReqTRES'")
    return lambda row: _sacct(row, "JobID" if "JobID" in known else "JobIDRaw", known)


def _sacct(row: _Row, id_column: str, known: set[str]) -> Submission:
    columns = [name for name in ("AllocTRES", "ReqTRES") if name in known]
    counts = {name: _gpus(row.text(name)) for name in columns}
    column = next((name for name in columns if counts[name]), columns[0])
    duration_s = _ran_s(row, known)
    never = None
    if not counts[column]:
        never = "it requested no GPU"
    elif duration_s <= 0:
        never = "it never ran, so its work is unknown"
    return Submission(
        id=row.text(id_column),
        row=row.number,
        submit_s=row.date_s("Submit"),
        slots=max(counts[column], 1),
        slots_column=column,
        duration_s=duration_s,
        never=never,
    )


def _gpus(tres: str) -> int:
    """Return the GPUs in a list of trackable resources: the total, or else the sum over types."""
    total = _GPUS.search(tres)
    return int(total[1]) if total else sum(int(count) for count in _GPUS_OF_TYPE.findall(tres))


def _ran_s(row: _Row, known: set[str]) -> float:
    """Return the seconds that a Slurm job ran, 0 if it never did."""
    if "Elapsed" in known:
        text = row.text("Elapsed")
        parts = _ELAPSED.match(text)
        if not parts:
            raise row.wrong("Elapsed", f"{text!r} is not a time like 1-02:03:04")
        days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
        return 86_400.0 * days + 3600.0 * hours + 60.0 * minutes + seconds
    if {row.text("Start"), row.text("End")} & {"Unknown", "None", ""}:
        return 0.0
    ran_s = row.date_s("End") - row.date_s("Start")
    if ran_s < 0:
        raise row.wrong("End", f"{row.text('End')} is before its start, {row.text('Start')}")
    return ran_s
