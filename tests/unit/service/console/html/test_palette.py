"""Colours of jobs: distinct while the palette has enough of them, and stable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.console.html.palette import ALIKE, HUES, Palette, mark_of

JOBS = [f"j{number}" for number in range(40)]
Pages = st.lists(
    st.tuples(st.lists(st.sampled_from(JOBS), unique=True, max_size=HUES), st.lists(st.sampled_from(JOBS))),
    min_size=1,
    max_size=12,
)


@given(Pages)
def test_running_jobs_never_share_a_colour_and_keep_theirs(pages: list[tuple[list[str], list[str]]]) -> None:
    palette = Palette()
    before: dict[str, int] = {}
    for running, drawn in pages:
        colours = palette.colours(running, drawn)
        of_running = [colours[job] for job in running]
        assert len(set(of_running)) == len(running)
        assert colours.keys() == {*running, *drawn}
        assert all(before[job] == colours[job] for job in running if job in before)
        before = {job: colours[job] for job in running}


@given(Pages)
def test_jobs_that_no_longer_run_keep_their_colours_whatever_pages_draw(
    pages: list[tuple[list[str], list[str]]],
) -> None:
    palette = Palette()
    before: dict[str, int] = {}
    for running, drawn in pages:
        colours = palette.colours(running, drawn)
        assert all(before[job] == colours[job] for job in drawn if job in before and job not in running), (
            "a page changed the colour that another page shows"
        )
        before |= colours


def test_the_latest_jobs_differ_although_they_ran_one_after_another() -> None:
    palette = Palette()
    latest = JOBS[:HUES]
    for job in latest:
        palette.colours([job], [])
    assert len(set(palette.colours([], latest).values())) == HUES


def test_second_running_job_gets_no_colour_that_is_close_to_the_first_ones() -> None:
    for job in JOBS[1:]:
        colours = Palette().colours([JOBS[0], job], [])
        assert frozenset(colours.values()) not in ALIKE


def test_a_job_that_starts_again_gives_its_colour_up_to_one_that_runs() -> None:
    palette = Palette()
    first, *others = JOBS
    kept = palette.colours([first], [])[first]
    everyone = others[:HUES]
    assert kept in palette.colours(everyone, []).values()
    running = [job for job in everyone if palette.colours(everyone, [])[job] == kept]
    again = palette.colours([*running, first], [])
    assert again[running[0]] == kept
    assert again[first] != kept


@pytest.mark.parametrize(
    ("name", "mark"), [("gpt", "gt"), ("digits-12", "d2"), ("x", "x"), ("", ""), ("é!", "é")]
)
def test_mark_of_a_name_has_its_first_and_last_letter(name: str, mark: str) -> None:
    assert mark_of(name) == mark


def test_more_jobs_than_colours_share_them_evenly() -> None:
    colours = Palette().colours(JOBS[: 2 * HUES], [])
    assert sorted(colours.values()) == sorted([*range(HUES), *range(HUES)])
