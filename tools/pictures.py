"""SVG pictures of the documentation: the life cycle of a job, goodput, and the effect of a budget.

The positions of states are chosen here. The arrows and their labels come from the table of transitions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from headway.contract.views.jobs import JobState
from service.domain.jobs.lifecycle import TRANSITIONS, JobEvent

Point = tuple[float, float]
_S = JobState
_INK, _SOFT, _LINE, _TEAL, _AMBER, _RED = "#1f2933", "#5b6773", "#c9d1d9", "#00796b", "#b56d00", "#c0392b"
_HALF_W, _HALF_H = 58.0, 19.0

PLACES: dict[JobState, Point] = {
    _S.PAUSED: (140, 130),
    _S.PENDING: (140, 310),
    _S.STARTING: (390, 310),
    _S.RESIZING: (570, 130),
    _S.RUNNING: (750, 310),
    _S.RECOVERING: (570, 490),
    _S.SUCCEEDED: (1010, 310),
    _S.CANCELLING: (1010, 210),
    _S.CANCELLED: (1010, 110),
    _S.FAILED: (1010, 490),
}
BOXES: dict[str, tuple[tuple[JobState, ...], tuple[float, float, float, float]]] = {
    "holds nothing": ((_S.PENDING, _S.PAUSED), (64, 88, 152, 264)),
    "may hold slots": ((_S.STARTING, _S.RUNNING, _S.RESIZING, _S.RECOVERING), (310, 88, 530, 462)),
}
"""Boxes of states: members, and left, top, width and height.

A transition that all members of a box share is drawn once, from the edge of the box.
"""


def lifecycle() -> str:
    """Return the picture of all legal transitions of a job."""
    shared = {(state, event) for events, members, _ in _from_boxes() for event in events for state in members}
    arrows: dict[tuple[JobState, JobState], list[str]] = {}
    for (source, event), target in TRANSITIONS.items():
        if (source, event) not in shared:
            arrows.setdefault((source, target), []).append(str(event))
    parts = [_box(title, where) for title, (_, where) in BOXES.items()]
    parts += [_arrow(source, target, events, arrows) for (source, target), events in arrows.items()]
    for events, members, target in _from_boxes():
        label = ", ".join(events)
        (x, y), (left, top, width, _) = (
            PLACES[target],
            next(where for states, where in BOXES.values() if states == members),
        )
        if left + width < 310:  # over everything, from the top
            parts.append(
                _path(f"M{left + width / 2} {top}C{left + width / 2} 20,{x} 10,{x} {y - _HALF_H - 4}")
            )
            parts.append(_label((560, 34), label))
        else:
            parts.append(_path(f"M{left + width} {y}H{x - _HALF_W - 4}"))
            parts.append(_label(((left + width + x - _HALF_W) / 2, y - 9), label))
    parts += [_state(state) for state in PLACES]
    return _svg(
        1110,
        590,
        "The life of a job",
        "States of a job and what leads from one to another; the table below says the same.",
        parts,
    )


def _from_boxes() -> Iterator[tuple[list[JobEvent], tuple[JobState, ...], JobState]]:
    """Yield the events that lead from every state of a box to the same state."""
    for members, _ in BOXES.values():
        found: dict[JobState, list[JobEvent]] = {}
        for (source, event), target in TRANSITIONS.items():
            same = all(TRANSITIONS.get((one, event)) is target for one in members)
            if source is members[0] and same and target not in members:
                found.setdefault(target, []).append(event)
        for target, events in found.items():
            yield events, members, target


def _arrow(
    source: JobState, target: JobState, events: Sequence[str], all_: Iterable[tuple[JobState, JobState]]
) -> str:
    (x1, y1), (x2, y2) = PLACES[source], PLACES[target]
    text = ", ".join(events)
    if source is target:
        return _path(
            f"M{x1 - 24} {y1 + _HALF_H}C{x1 - 40} {y1 + 62},{x1 + 40} {y1 + 62},{x1 + 24} {y1 + _HALF_H + 4}"
        ) + _label((x1, y1 + 50), text)
    if (source, target) == (_S.RECOVERING, _S.PAUSED):  # around PENDING
        return _path(f"M{x1 - _HALF_W} {y1}C150 {y1 + 10},10 330,{x2 - _HALF_W - 4} {y2 + 8}") + _label(
            (208, 452), text
        )
    if source is _S.FAILED:  # around everything, along the bottom
        return _path(f"M{x1} {y1 + _HALF_H}V574H{x2}V{y2 + _HALF_H + 4}") + _label((x1 - 180, 568), text)
    if source is _S.CANCELLED:  # around everything, along the top
        return _path(f"M{x1 + 30} {y1 - _HALF_H}V12H30V{y2}H{x2 - _HALF_W - 4}") + _label((300, 25), text)
    length = math.hypot(x2 - x1, y2 - y1)
    across = (-(y2 - y1) / length, (x2 - x1) / length)
    aside = 9.0 if (target, source) in set(all_) else 0.0
    shift = (across[0] * aside, across[1] * aside)
    start, end = _edge((x1, y1), (x2, y2), shift, 0), _edge((x2, y2), (x1, y1), shift, 4)
    at = 0.28 if {source, target} in ({_S.RESIZING, _S.RECOVERING}, {_S.STARTING, _S.RUNNING}) else 0.38
    middle = (start[0] + (end[0] - start[0]) * at, start[1] + (end[1] - start[1]) * at + 4)
    return _path(f"M{start[0]:.0f} {start[1]:.0f}L{end[0]:.0f} {end[1]:.0f}") + _label(middle, text)


def _edge(one: Point, other: Point, shift: Point, gap: float) -> Point:
    """Return the point at which the line between two states, shifted by `shift`, leaves the rectangle of the first."""
    dx, dy = other[0] - one[0], other[1] - one[1]
    across = (_HALF_W + gap - math.copysign(shift[0], shift[0] * dx)) / abs(dx) if dx else math.inf
    down = (_HALF_H + gap - math.copysign(shift[1], shift[1] * dy)) / abs(dy) if dy else math.inf
    factor = min(across, down)
    return one[0] + dx * factor + shift[0], one[1] + dy * factor + shift[1]


def _state(state: JobState) -> str:
    x, y = PLACES[state]
    ends = state in {_S.SUCCEEDED, _S.FAILED, _S.CANCELLED}
    colour = {_S.RUNNING: _TEAL, _S.FAILED: _RED, _S.RECOVERING: _AMBER}.get(state, _INK)
    return (
        f'<rect x="{x - _HALF_W}" y="{y - _HALF_H}" width="{2 * _HALF_W}" height="{2 * _HALF_H}" rx="8" fill="#fff" '
        f'stroke="{colour}" stroke-width="{3 if ends else 1.6}"/>'
        f'<text x="{x}" y="{y + 4.5}" text-anchor="middle" font-size="13" font-weight="600" fill="{colour}">{state}</text>'
    )


def _box(title: str, where: tuple[float, float, float, float]) -> str:
    left, top, width, height = where
    return (
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="12" fill="#f5f8f9" stroke="{_LINE}"/>'
        f'<text x="{left + 12}" y="{top + height - 10}" font-size="12" fill="{_SOFT}">{title}</text>'
    )


def goodput() -> str:
    """Return the picture of goodput: a speed that flattens with more slots, times the decreasing worth of a sample."""
    sizes = [size / 4 for size in range(4, 65)]
    speed = [size / (1 + 0.1 * (size - 1)) for size in sizes]
    worth = [1.0 / (1 + 0.1 * (size - 1)) for size in sizes]
    useful = [one * other for one, other in zip(speed, worth, strict=True)]
    scale = 300 / max(speed)
    best = max(range(len(sizes)), key=lambda at: useful[at])
    x = [90 + 56 * size for size in sizes]
    parts = _axes(1040, 430, "slots, with a batch that grows with them", "per second")
    parts += [
        _curve(x, [400 - scale * one for one in speed], _SOFT),
        _end(x[-1], 400 - scale * speed[-1], "samples", _SOFT),
    ]
    parts += [_curve(x, [400 - scale * one for one in useful], _TEAL, 3.5)]
    parts += [_end(x[-1], 400 - scale * useful[-1], "goodput", _TEAL)]
    parts += [
        _curve(x, [400 - 300 * one for one in worth], _AMBER, 1.8),
        _text(x[0] + 40, 400 - 300 * worth[0] - 8, "worth of one, against the first", _AMBER, "start"),
    ]
    top = 400 - scale * useful[best]
    parts += [
        f'<circle cx="{x[best]:.0f}" cy="{top:.0f}" r="6" fill="{_TEAL}"/>',
        _text(x[best], top + 26, f"from {sizes[best]:.0f} slots on more of them train no faster", _TEAL),
    ]
    told = "Samples per second grow with slots and flatten; the worth of a sample falls as the batch grows; their product has a maximum."
    return _svg(1140, 470, "Goodput", told, parts)


def budget() -> str:
    """Return the picture of speed by dollars per hour for the sizes of one job, with a cap."""
    sizes = (1, 2, 4, 8, 16)
    dollars = [2.0 * size for size in sizes]
    speed = [size / (1 + 0.055 * (size - 1)) for size in sizes]
    x = [100 + 27 * usd for usd in dollars]
    y = [400 - 36 * one for one in speed]
    parts = _axes(1040, 430, "dollars an hour", "goodput")
    parts.append(_curve(x, y, _SOFT, 1.8))
    cut = 100 + 27 * 22.0
    parts.append(f'<path d="M{cut} 70V400" stroke="{_RED}" stroke-width="1.6" stroke-dasharray="6 5"/>')
    parts.append(_text(cut + 8, 84, "hourly cap: nothing to the right of it", _RED, "start"))
    named = {
        1: "narrow: a sample costs least",
        4: "knee: beyond it speed costs much",
        16: "wide: done soonest, dearest",
    }
    for size, px, py in zip(sizes, x, y, strict=True):
        forbidden = px > cut
        colour = _LINE if forbidden else _TEAL
        parts.append(f'<circle cx="{px:.0f}" cy="{py:.0f}" r="7" fill="{colour}"/>')
        parts.append(
            _text(px, py - 14, f"{size} slot{'s' if size > 1 else ''}", _SOFT if forbidden else _INK)
        )
        if size in named:
            parts.append(
                _text(min(px + 14, 830), py + (46 if size == 16 else 24), named[size], _SOFT, "start")
            )
    return _svg(
        1140,
        470,
        "What a budget does",
        "Each size of a job is a point: what it costs an hour, and how fast it is.",
        parts,
    )


def _axes(right: float, bottom: float, across: str, up: str) -> list[str]:
    return [
        f'<path d="M90 60V{bottom - 30}H{right}" fill="none" stroke="{_LINE}" stroke-width="1.5"/>',
        _text(right, bottom, across, _SOFT, "end"),
        _text(90, 46, up, _SOFT, "start"),
    ]


def _curve(x: Sequence[float], y: Sequence[float], colour: str, width: float = 2.2) -> str:
    points = "L".join(f"{px:.1f} {py:.1f}" for px, py in zip(x, y, strict=True))
    return f'<path d="M{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _end(x: float, y: float, text: str, colour: str) -> str:
    return _text(x + 8, y + 4, text, colour, "start")


def _text(x: float, y: float, text: str, colour: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="14" fill="{colour}">{escape(text)}</text>'


def _label(at: Point, text: str) -> str:
    return (
        f'<text x="{at[0]:.0f}" y="{at[1]:.0f}" text-anchor="middle" font-size="12" fill="{_SOFT}" stroke="#fff" stroke-width="4" '
        f'paint-order="stroke">{escape(text)}</text>'
    )


def _path(how: str) -> str:
    return f'<path d="{how}" fill="none" stroke="{_SOFT}" stroke-width="1.4" marker-end="url(#m)"/>'


def _svg(width: int, height: int, title: str, told: str, parts: Iterable[str]) -> str:
    marker = f'<marker id="m" viewBox="0 0 8 8" refX="5" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 .6L7.5 4L0 7.4z" fill="{_SOFT}"/></marker>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="t d" '
            'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">',
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape(told)}</desc>',
            f"<defs>{marker}</defs>",
            f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="#fff" stroke="{_LINE}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def pictures() -> dict[str, str]:
    """Return every picture by its file name."""
    return {"lifecycle.svg": lifecycle(), "goodput.svg": goodput(), "budget.svg": budget()}
