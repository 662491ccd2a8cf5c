"""Parallel coordinates: a line for each trial, the best on top, and a bounded size."""

from __future__ import annotations

import random

from service.console.html.fragments import Content, Listing, PageVersion, redrawn
from service.console.pages.sweep import sweep_fragments
from service.console.pictures.parallel import parallel_picture
from service.console.templates import Templates
from tests.unit.service.console.sweep_views import sweep_view, trial_view

SPACE = {"lr": [0.1, 0.01], "optimiser": ["sgd", "adam"]}


def test_each_trial_is_a_line_to_its_job_with_the_best_last() -> None:
    trials = [
        trial_view(1, {"lr": 0.1, "optimiser": "sgd"}, 2.0),
        trial_view(2, {"lr": 0.01, "optimiser": "adam"}, 1.0),
        trial_view(3, {"lr": 0.1, "optimiser": "adam"}),
    ]
    picture = parallel_picture(sweep_view(trials, SPACE, 2))
    assert [(name, line.tone) for name, line in picture.lines] == [
        ("line-1", "other"),
        ("line-3", "open"),
        ("line-2", "best"),
    ]
    lines = dict(picture.lines)
    # three axes: lr upwards, optimiser as listed, loss with the larger value above
    heights = {name: line.path.split()[1::2] for name, line in lines.items()}
    assert heights == {"line-1": ["0", "0", "0"], "line-2": ["1000"] * 3, "line-3": ["0", "1000"]}
    left = [one.path.removeprefix("M").split()[::2] for one in lines.values()]
    assert left[0][:2] == left[1], "without a value, a line ends at its last parameter"
    assert lines["line-2"].job_id == "j2"
    assert lines["line-2"].title == "digits-2: lr 0.01, optimiser adam, loss 1"
    assert [one.name for one in picture.axes.axes] == ["lr", "optimiser", "loss"]
    assert picture.axes.axes[-1].note == "lower is better"
    assert len(picture.best.dots) == 3
    assert picture.best.name == "trial 2"
    assert "of 1 trial without a value" in picture.words


def test_sweep_without_metric_has_no_axis_for_it_and_no_best() -> None:
    picture = parallel_picture(sweep_view([trial_view(1, {"lr": 0.1})], {"lr": [0.1]}, metric=None))
    assert [one.name for one in picture.axes.axes] == ["lr"]
    assert picture.lines[0][1].tone == "other"
    assert picture.best.dots == ()


def test_tenth_of_the_trials_is_near_the_best_and_diverged_ones_have_no_value() -> None:
    trials = [trial_view(number, {"lr": 0.1}, float(number)) for number in range(1, 31)]
    trials.append(trial_view(31, {"lr": 0.1}, float("inf")))
    tones = {name: line.tone for name, line in parallel_picture(sweep_view(trials, {"lr": [0.1]}, 1)).lines}
    assert [tones[f"line-{number}"] for number in (1, 2, 3, 4, 31)] == [
        "best",
        "near",
        "near",
        "other",
        "open",
    ]


def test_page_of_the_largest_sweep_is_bounded_and_unchanged_trials_are_not_drawn_again() -> None:
    draws = random.Random(0)
    names = [f"parameter_{number}" for number in range(20)]
    trials = [
        trial_view(number, {name: draws.uniform(1e-5, 1.0) for name in names}, draws.random())
        for number in range(1, 501)
    ]
    space = {name: {"min": 1e-5, "max": 1.0, "log": True} for name in names}
    view = sweep_view(trials, space, 7, search="random", trials=500)
    templates, drawn = Templates(), []

    def contents() -> list[Content]:
        return sweep_fragments(view, may_control=True, order="")

    def render(fragment: object) -> str:
        drawn.append(fragment)
        return templates.fragment(fragment)  # type: ignore[arg-type]

    page = redrawn(PageVersion(), contents(), render)
    assert sum(len(one.html) for one in page.fragments.values()) < 1_500_000
    picture = sum(
        len(one.html) for name, one in page.fragments.items() if name.startswith(("line-", "parallel-"))
    )
    assert picture < 250_000
    before = len(drawn)
    assert redrawn(page, contents(), render) is page
    assert len(drawn) == before


def test_names_that_would_act_on_the_page_are_escaped() -> None:
    trials = [trial_view(1, {"text": '<script>"'}, 1.0, name="a<b")]
    view = sweep_view(trials, {"text": ['<script>"', "plain"]}, 1)
    templates = Templates()
    html = ""
    for content in sweep_fragments(view, may_control=True, order=""):
        for one in content.fragments if isinstance(content, Listing) else [content]:
            html += templates.fragment(one)
    assert "<script>&" not in html
    assert "a<b" not in html
    assert "&lt;script&gt;" in html
