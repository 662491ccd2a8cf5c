"""The colours of jobs in the style sheet: visible, apart from one another for every kind of sight, and readable under names."""

from __future__ import annotations

import math
import re
from itertools import combinations

import pytest

from service.console.html.palette import ALIKE, HUES
from service.console.templates import HERE

STYLE = (HERE / "static" / "console.css").read_text()
Colour = tuple[float, float, float]
SIGHTS: dict[str, tuple[Colour, Colour, Colour]] = {
    "all three kinds of cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no cones for red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no cones for green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "no cones for blue": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""Linear RGB as it is seen, by the model of Machado, Oliveira and Fernandes (2009)."""
LEAST_DISTANCE = 0.07
"""In OKLab, where black and white are 1 apart and 0.02 can just be told apart side by side."""


def linear(code: str) -> Colour:
    red, green, blue = (int(code[at : at + 2], 16) / 255 for at in (1, 3, 5))
    straight = [
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in (red, green, blue)
    ]
    return straight[0], straight[1], straight[2]


def times(rows: tuple[Colour, Colour, Colour], colour: Colour) -> Colour:
    first, second, third = (sum(a * b for a, b in zip(row, colour, strict=True)) for row in rows)
    return first, second, third


def oklab(colour: Colour) -> Colour:
    cones = times(
        (
            (0.4122214708, 0.5363325363, 0.0514459929),
            (0.2119034982, 0.6806995451, 0.1073969566),
            (0.0883024619, 0.2817188376, 0.6299787005),
        ),
        (max(0.0, colour[0]), max(0.0, colour[1]), max(0.0, colour[2])),
    )
    return times(
        (
            (0.2104542553, 0.7936177850, -0.0040720468),
            (1.9779984951, -2.4285922050, 0.4505937099),
            (0.0259040371, 0.7827717662, -0.8086757660),
        ),
        (math.cbrt(cones[0]), math.cbrt(cones[1]), math.cbrt(cones[2])),
    )


def contrast(one: Colour, other: Colour) -> float:
    low, high = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in (one, other))
    return (high + 0.05) / (low + 0.05)


def of_scheme(scheme: str) -> tuple[list[Colour], Colour, Colour]:
    """The colours of jobs, of cards and of text."""

    def read(pattern: str) -> list[str]:
        return [
            found[scheme == "dark"]
            for found in re.findall(pattern + r" light-dark\((#\w{6}), (#\w{6})\)", STYLE)
        ]

    (card,), (ink,) = read("--card:"), read("--ink:")
    return [linear(one) for one in read(r"\.job-\d+ \{ color:")], linear(card), linear(ink)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_jobs_can_be_told_apart_and_names_read(scheme: str) -> None:
    jobs, card, ink = of_scheme(scheme)
    assert len(jobs) == HUES
    for sight, rows in SIGHTS.items():
        seen = [oklab(times(rows, one)) for one in jobs]
        assert min(math.dist(*pair) for pair in combinations(seen, 2)) >= LEAST_DISTANCE, sight
    assert min(contrast(one, card) for one in jobs) >= 2.99
    # A bar is a mixture of the colour and the card, whose lightness in OKLab is the mean of theirs.
    found = re.search(
        r"\.held \.fill \{ fill: color-mix\(in oklab, currentColor (\d+)%, var\(--card\)\)", STYLE
    )
    assert found is not None
    share = int(found[1]) / 100
    for one in jobs:
        lightness = share * oklab(one)[0] + (1 - share) * oklab(card)[0]
        grey = lightness**3
        assert contrast((grey, grey, grey), ink) >= 4.5


def test_pairs_of_close_colours_are_those_of_the_style_sheet() -> None:
    close = set()
    for scheme in ("light", "dark"):
        seen = [oklab(one) for one in of_scheme(scheme)[0]]
        close |= {
            frozenset((one, other))
            for one, other in combinations(range(HUES), 2)
            if math.dist(seen[one], seen[other]) < 0.14
        }
    assert close == ALIKE


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_in_squares_are_readable(scheme: str) -> None:
    found = re.findall(r"\.job-\d+ \{ color: .*--on: light-dark\((#\w{3}), (#\w{3})\)", STYLE)
    letters = [linear("#" + "".join(2 * one for one in pair[scheme == "dark"][1:])) for pair in found]
    jobs = of_scheme(scheme)[0]
    assert min(contrast(*pair) for pair in zip(jobs, letters, strict=True)) >= 4.5
