"""The findings of the self-test: a sentence for each promise, with the measured figures. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headway.selftest.trial import Change, TrialResult

LARGEST_LOSS_ERROR = 1e-4
"""Largest relative difference of a loss after changes of size: another number of ranks adds in another order."""
_REPORT = "Set `elastic.resize: restart` in job files for these devices, and report this line."


@dataclass(frozen=True)
class Finding:
    """A promise, whether it was held, and what was seen. `why` and `hint` are empty if it was held."""

    name: str
    held: bool
    found: str
    why: str = ""
    hint: str = ""


def findings_of(kind: str, result: TrialResult) -> Iterator[Finding]:
    """Yield the findings of a trial of a `replicated` or `sharded` model."""
    yield _change(f"{kind}: grow", "1 to 2 ranks", result.grows, most_lost=0)
    yield _change(f"{kind}: shrink", "2 ranks to 1", [result.shrink], most_lost=0)
    if result.loss is not None:
        yield _change(f"{kind}: lost rank", "a rank was killed", [result.loss], most_lost=1)
    held = result.resumed_at == result.stopped_at
    yield Finding(
        f"{kind}: checkpoint",
        held,
        f"stopped at sample {result.stopped_at:,}, continued on 2 ranks at {result.resumed_at:,}.",
        *(() if held else ("A restart repeats or skips samples.", _REPORT)),
    )
    held = result.loss_error <= LARGEST_LOSS_ERROR
    yield Finding(
        f"{kind}: losses",
        held,
        f"differ by at most {result.loss_error:.1e} from those of an undisturbed rank, over {result.steps} steps.",
        *(() if held else ("A changed size changes what a job learns.", _REPORT)),
    )


def failure(kind: str, cause: str) -> Finding:
    """Return the finding of a trial that did not come to its end."""
    return Finding(
        f"{kind}: trial", held=False, found=cause, why="Changes in place do not work here.", hint=_REPORT
    )


def _change(name: str, what: str, changes: Sequence[Change], *, most_lost: int) -> Finding:
    pauses = ", then ".join(f"{one.pause_s:.2f} s" for one in changes)
    lost, moved = max(one.lost_steps for one in changes), max(one.sync_bytes for one in changes)
    held = lost <= most_lost
    return Finding(
        name,
        held,
        f"{what} in place: paused {pauses}, {moved / 1e6:.1f} MB of state moved, {lost} steps repeated.",
        *(() if held else (f"At most {most_lost} may be repeated.", _REPORT)),
    )
