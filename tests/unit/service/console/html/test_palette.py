"""Colours of jobs: distinct while the palette has enough of them, and stable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.console.html.palette import HUES, Palette, preferred

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


@given(
    st.lists(st.sampled_from(JOBS), unique=True, max_size=6),
    st.lists(st.sampled_from(JOBS), unique=True, max_size=6),
)
def test_all_jobs_of_a_page_differ_while_there_are_enough_colours(
    running: list[str], drawn: list[str]
) -> None:
    palette = Palette()
    for job in JOBS:
        palette.colours([], [job])  # each on a page of its own, where nothing keeps it from any colour
    colours = palette.colours(running, drawn)
    assert len(set(colours.values())) == len(colours)


def test_a_job_has_the_colour_that_it_prefers_and_gives_it_up_to_one_that_runs() -> None:
    palette = Palette()
    first = JOBS[0]
    rival = next(job for job in JOBS[1:] if preferred(job) == preferred(first))
    assert palette.colours([], [first]) == {first: preferred(first)}
    assert palette.colours([rival], [])[rival] == preferred(rival)
    assert palette.colours([rival], [first])[first] != preferred(first)


def test_more_jobs_than_colours_share_them_evenly() -> None:
    colours = Palette().colours(JOBS[: 2 * HUES], [])
    assert sorted(colours.values()) == sorted([*range(HUES), *range(HUES)])
