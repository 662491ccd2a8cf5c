"""Steps of a script, parsed from the output of its rank 0 by the pattern of its job file.

Users write the patterns, and their scripts print the lines. RE2 matches in time linear in the length of the
line, so that no pattern can block the agent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from headway.contract.runtime import Stepped
from headway.contract.values.patterns import EPOCH_GROUP, EPOCHS_GROUP, STEP_GROUP, TOTAL_GROUP
from worker_agent.link.messages import size_bytes
from worker_agent.runs.epoch_steps import EpochSteps
from worker_agent.runs.records import Run
from worker_agent.runs.stacks import add_to_log

_log = structlog.get_logger()

LOOK_EVERY_S = 0.5
LINE_BYTES = 4096
"""Bytes of a line that are matched; the rest of a longer line is ignored."""
_READ_BYTES = 1 << 20
_MOST_STEP = 2**53
_THOUSANDS = re.compile(r"(?:,\d{3})+(?![\d,])")
_LINE_END = re.compile(rb"[\r\n]")
"""Separator of lines. Progress bars end their lines with a carriage return."""


@dataclass(slots=True)
class _Reader:
    """Read position and pattern for the log of a run. `pattern` is None if it is invalid."""

    pattern: Any
    offset: int
    looked_s: float = 0.0
    epochs: EpochSteps = field(default_factory=EpochSteps)
    noted: bool = False
    """The log says already that the pattern divides a number."""


class PrintedSteps:
    """Parser of printed steps. The supervisor's loop calls `look` many times a second."""

    def __init__(self) -> None:
        self._readers: dict[str, _Reader] = {}

    def look(self, run: Run, now_s: float, *, final: bool = False) -> list[Stepped]:
        """Return the latest step that the run has printed since the last call, preceded by its very first step.

        `now_s` is Unix time. Steps in between are not reported: all steps of a call have the same time, so
        they contain no information on speed.
        """
        if run.command.progress_regex is None or all(slot.rank for slot in run.command.ranks):
            return []
        reader = self._readers.get(run.name)
        if reader is None:
            reader = self._readers[run.name] = _reader_of(run, run.command.progress_regex)
        if reader.pattern is None or (not final and abs(now_s - reader.looked_s) < LOOK_EVERY_S):
            return []
        reader.looked_s = now_s
        found: list[Stepped] = []
        for line in _lines(run.folder.log(0), reader, final=final):
            stepped = stepped_in(reader.pattern, line, generation=run.command.generation, at_s=now_s)
            if stepped is not None:
                if not reader.noted and (note := divided_number(reader.pattern, line)):
                    reader.noted = True
                    add_to_log(run, 0, f"[headway] {note}.\n")
                stepped = _of_whole_training(stepped, reader.epochs)
                found = [stepped] if run.stepped else [*found[:1], stepped]
        return found

    def forget(self, run: Run) -> None:
        """Forget the read position of a finished run."""
        self._readers.pop(run.name, None)


def compiled(pattern: str) -> Any:
    """Return the compiled pattern for `stepped_in`.

    Raises:
        ValueError: the pattern is not valid for RE2.
    """
    import re2  # type: ignore[import-untyped]  # noqa: PLC0415  # only for jobs with a pattern

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        (reason, *_) = error.args or ("unknown",)
        raise ValueError(
            reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        ) from error


def stepped_in(pattern: Any, line: bytes, *, generation: int, at_s: float) -> Stepped | None:
    """Return the step in a line, or None if the line has none."""
    match = pattern.search(line[:LINE_BYTES].decode(errors="replace"))
    if match is None:
        return None
    groups: dict[str, str | None] = match.groupdict()
    step, total = (_number(groups.pop(name, None)) for name in (STEP_GROUP, TOTAL_GROUP))
    if step is None or not 0 <= step <= _MOST_STEP:
        return None
    values = {name: value for name, text in groups.items() if (value := _number(text)) is not None}
    counts = total is not None and 0 <= total <= _MOST_STEP
    return Stepped(
        rank=0,
        generation=generation,
        at_s=at_s,
        step=int(step),
        total=int(total) if counts and total is not None else None,
        values=values,
    )


def divided_number(pattern: Any, line: bytes) -> str:
    """Return a remark on a step or total that ends before a thousands separator, such as 1 of 1,250; empty if there is none.

    It is not read as 1,250: the line may be a list of numbers.
    """
    match = pattern.search(line[:LINE_BYTES].decode(errors="replace"))
    for name, number in pattern.groupindex.items() if match is not None else ():
        text: str = (match.group(number) if name in {STEP_GROUP, TOTAL_GROUP} else None) or ""
        rest = _THOUSANDS.match(match.string, match.end(number)) if text else None
        if rest and text.isdecimal() and len(text) <= 3:
            return (
                f"progress.regex reads {text} as the {name} from {text}{rest[0]}; if that is one number, write "
                rf"(?P<{name}>[\d,]+)"
            )
    return ""


def _of_whole_training(stepped: Stepped, epochs: EpochSteps) -> Stepped:
    """Return a printed step with its number since training began."""
    named = {name: stepped.values.get(name) for name in (EPOCH_GROUP, EPOCHS_GROUP)}
    step, total = epochs.count(stepped.step, stepped.total, named[EPOCH_GROUP], named[EPOCHS_GROUP])
    return replace(stepped, step=step, total=total)


def _number(text: str | None) -> float | None:
    """Return the number in a group; `1,200` and `3.5.` are numbers too. Return None if it is not a finite number."""
    if text is None:
        return None
    try:
        value = float(text.strip().rstrip(".,;:%").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _reader_of(run: Run, pattern: str) -> _Reader:
    """Return the reader of a log. A restarted agent continues at its end, because earlier steps are reported."""
    offset = size_bytes(str(run.folder.log(0))) if run.stepped else 0
    try:
        return _Reader(compiled(pattern), offset)
    except (ImportError, ValueError) as error:
        _log.warning("progress pattern cannot be used", run=run.name, error=str(error))
        add_to_log(run, 0, f"[headway] progress.regex cannot be used on this node: {error}.\n")
        return _Reader(None, offset)


def _lines(path: Path, reader: _Reader, *, final: bool) -> Iterator[bytes]:
    """Yield whole lines behind the reader's offset, and advance it. With `final`, the last line needs no end."""
    while size_bytes(str(path)) > reader.offset:
        with path.open("rb") as file:
            file.seek(reader.offset)
            data = file.read(_READ_BYTES)
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end and (final or len(data) == _READ_BYTES):
            end = len(data)
        if final and reader.offset + len(data) >= size_bytes(str(path)):
            end = len(data)
        reader.offset += end
        yield from (line for line in _LINE_END.split(data[:end]) if line)
        if not final or not end:
            return
