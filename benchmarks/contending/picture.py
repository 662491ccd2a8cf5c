"""Text output for a finished stream: slots by time, its jobs, and their events."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

from benchmarks.contending.history import Held, changes_of, starts_s
from benchmarks.contending.live import PlayedStream
from benchmarks.contending.measures import (
    GOALS,
    Moment,
    early_of,
    min_run_s,
    pinned_of,
    violations_of,
    waits_of,
)
from benchmarks.contending.ordering import self_evictions

WIDTH = 100
"""Width of the picture, in columns of equal time."""
_LONG_WAIT_S = 1.0
_SHOWN_EVENTS = frozenset(
    {
        "submit",
        "allocate",
        "restore",
        "resize_requested",
        "abandon",
        "fail_rank",
        "recover",
        "succeed",
        "cancel",
    }
)
_LETTERS = string.ascii_uppercase + string.ascii_lowercase


def picture(played: PlayedStream) -> str:
    """Return a chart with slots as rows and time as columns: the letter of the job that held the slot, `.` if none did."""
    end_s = max(past.finished_s for past in played.pasts)
    letters = {past.name: letter for past, letter in zip(played.pasts, _LETTERS, strict=False)}
    column_s = end_s / WIDTH
    lines = [f"{played.stream.name}: {end_s:.0f} s, {column_s:.1f} s a column"]
    for slot in range(played.stream.slots):
        here = [one for one in played.held if one.slot == slot]
        cells = (_holder(here, column * column_s, (column + 1) * column_s) for column in range(WIDTH))
        lines.append(f"  {slot} |" + "".join(letters[cell] if cell else "." for cell in cells) + "|")
    return "\n".join(lines)


def _holder(held: Sequence[Held], from_s: float, to_s: float) -> str:
    """Return the job that held a slot for most of a period; empty if none held it for half of the period."""
    by_name: dict[str, float] = {}
    for one in held:
        by_name[one.name] = by_name.get(one.name, 0.0) + max(
            0.0, min(one.to_s, to_s) - max(one.from_s, from_s)
        )
    name = max(by_name, key=lambda name: by_name[name], default="")
    return name if by_name.get(name, 0.0) >= (to_s - from_s) / 2 else ""


def job_table(played: PlayedStream) -> str:
    """Return a table of the jobs: letter in the chart, submit time, completion time, and counts of starts and changes."""
    lines = [
        f"    {'job':10} {'submit':>7} {'first':>7} {'took':>7} {'ideal':>7} {'ratio':>6} {'starts':>6} {'changes':>7} "
        f"{'vacates':>7}"
    ]
    for letter, past, ideal_s in zip(_LETTERS, played.pasts, played.ideal_s, strict=False):
        changes = list(changes_of(past))
        first_s = next((one.at_s for one in past.events if one.kind == "first_step"), past.finished_s)
        lines.append(
            f"  {letter} {past.name:10} {past.submitted_s:7.1f} {first_s - past.submitted_s:7.1f} "
            f"{past.completion_s:7.1f} {ideal_s:7.1f} {past.completion_s / ideal_s:6.2f} "
            f"{len(starts_s(past.events)):6} {len(changes):7} {sum(one.stops for one in changes):7}"
        )
    return "\n".join(lines)


def story(played: PlayedStream) -> str:
    """Return starts, changes, waits and ends in order of time; `!` marks violations of the goals."""
    pasts, slots = played.pasts, played.stream.slots
    changes = [change for past in pasts for change in changes_of(past)]
    bad = [
        *early_of(changes, min_run_s(pasts), pasts, played.held),
        *pinned_of(changes),
        *self_evictions(changes, played.held),
    ]
    lines: list[tuple[float, str]] = []
    for change in changes:
        how = "vacated" if change.stops else "in place"
        lines.append(
            (
                change.at_s,
                f"{'!' if change in bad else ' '} {change.name} {change.before}->{change.to} {how}, "
                f"{change.ran_s:.1f} s after its start: {change.message}",
            )
        )
    for past in pasts:
        lines += [
            (event.at_s, f"  {past.name} {event.kind}: {event.message}")
            for event in past.events
            if event.kind in _SHOWN_EVENTS
        ]
    for wait in waits_of(pasts, slots, Moment.all_fit):
        if wait.wait_s >= _LONG_WAIT_S:
            mark = "!" if wait.wait_s > GOALS["starved_s"] else " "
            lines.append(
                (
                    wait.to_s,
                    f"{mark} {wait.name} has waited {wait.wait_s:.1f} s although all minimums fit",
                )
            )
    lines += [
        (
            one.to_s,
            f"! {one.low} ran for {one.low_s:.1f} s in the place of {one.high}, which ran for {one.high_s:.1f} s",
        )
        for one in violations_of(pasts, slots)
    ]
    return "\n".join(f"  {at_s:7.1f} {text}" for at_s, text in sorted(lines))


def summary(streams: Mapping[str, Mapping[str, float]], worst: Mapping[str, float]) -> str:
    """Return a table with the measures of all streams, their worst values and the goals."""
    keys = list(dict.fromkeys(key for one in streams.values() for key in one))
    header = "".join([f"{'':22}", *(f"{name:>11}" for name in streams), f"{'worst':>11}{'goal':>8}"])
    lines = [header]
    for key in keys:
        row = f"{key:22}" + "".join(
            f"{one[key]:11.4g}" if key in one else f"{'-':>11}" for one in streams.values()
        )
        if key in GOALS:
            row += f"{worst[key]:11.4g}{GOALS[key]:8.4g} {'met' if worst[key] <= GOALS[key] else 'MISSED'}"
        lines.append(row)
    return "\n".join(lines)
