from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.simulation.report.charts import number, time_unit
from service.simulation.report.page import binned, render
from service.simulation.report.results import Results
from service.simulation.report.words import findings, warnings
from tests.unit.service.simulation.made_up import result

HOSTILE = "<script>alert(\"1\")</script> & 'x'"


class Page(HTMLParser):
    """Parser that checks the order of opened and closed tags and collects the text between them."""

    VOID = frozenset({"meta", "input"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.words.append(data)

    def count(self, tag: str) -> int:
        return sum(1 for name, _ in self.tags if name == tag)


def page(*runs, name: str = "philly") -> Page:
    return Page(render(Results(name=name, runs=runs)))


def two() -> tuple:
    return (result("goodput"), result("fifo", slow=2.0))


def test_a_report_needs_nothing_from_elsewhere():
    html = render(Results(name="philly", runs=two()))
    html = html.replace("/*! https://github.com/leeoniya/uPlot", "")
    assert not re.search(r"""(src|href)\s*=|@import|url\(|https?://""", html)


def test_every_chart_has_a_table_every_picture_a_name_and_every_box_a_label():
    shown = page(*two())
    charts = [attributes for tag, attributes in shown.tags if "data-chart" in attributes]
    assert len(charts) == 6
    assert all(one["aria-hidden"] == "true" for one in charts)
    assert shown.words.count("As a table") == 6
    pictures = [
        attributes for tag, attributes in shown.tags if tag == "svg" and "aria-hidden" not in attributes
    ]
    assert len(pictures) == 2
    assert all(one["role"] == "img" and one["aria-label"] for one in pictures)
    assert shown.count("input") == 2 == sum(1 for tag, _ in shown.tags if tag == "label")


def test_a_chart_has_a_line_for_each_policy_and_its_table_says_the_same():
    runs = two()
    shown = page(*runs)
    charts = [
        json.loads(attributes["data-chart"] or "")
        for _, attributes in shown.tags
        if "data-chart" in attributes
    ]
    completion, slots = charts[0], charts[2]
    assert [(one["name"], one["policy"]) for one in completion["lines"]] == [("goodput", 0), ("fifo", 1)]
    assert all(one["y"] == sorted(one["y"]) and one["y"][-1] == 1.0 for one in completion["lines"])
    assert all(len(one["y"]) == len(completion["x"]) for one in completion["lines"])
    assert slots["lines"][-1]["policy"] is None
    quickest_ends = [at for at, value in enumerate(slots["lines"][0]["y"]) if value is None]
    assert quickest_ends, "the quicker policy has no values after its end"
    assert shown.words[shown.words.index("As a table") :].index("100 %") > 0


def test_names_from_outside_are_text_and_never_markup():
    hostile = result(HOSTILE, job_name=HOSTILE, rejected=((HOSTILE, HOSTILE),))
    plain = page(result("x", job_name="y", rejected=(("z", "too large"),)))
    shown = page(hostile, name=HOSTILE)
    assert shown.count("script") == plain.count("script") == 1
    assert any(HOSTILE in words for words in shown.words)


@pytest.mark.parametrize("policies", [1, 2, 12, 14])
def test_any_number_of_policies_has_its_rows_and_lines(policies: int):
    shown = page(*(result(f"policy{index}", slow=1 + index / 10, jobs=5) for index in range(policies)))
    assert shown.words.count("policy0") >= 2
    assert shown.count("details") == policies + 1 + shown.words.count("As a table")
    assert shown.count("fieldset") == (policies > 1)


def test_many_jobs_are_summed_up_and_the_page_stays_small():
    html = render(Results(name="philly", runs=(result(jobs=5000),)))
    assert "too many jobs to show each" in html
    assert "job-17 " not in html
    assert len(html) < 300_000


def test_few_jobs_are_shown_one_by_one():
    shown = page(result(jobs=7))
    assert sum("(cifar10): requested" in words for words in shown.words) == 7


def test_one_job_that_never_ended_makes_a_page():
    shown = page(result(jobs=1, unfinished=1))
    assert "No values." in shown.words


def test_without_prices_the_cost_is_not_shown_as_zero():
    html = render(Results(name="philly", runs=(result(usd_per_slot_h=0.0),)))
    assert "has no prices" in html
    assert "$0" not in html


def test_the_best_of_a_column_is_marked_once():
    html = render(Results(name="philly", runs=two()))
    rows = re.findall(r'<tr class="p\d"><th scope="row">(\w+)</th>(.*?)</tr>', html)
    first = {name: cells.split("</td>")[0] for name, cells in reversed(rows)}
    assert "best" in first["goodput"]
    assert "best" not in first["fifo"]


def test_the_words_say_who_was_first_and_by_how_much():
    said = findings(
        Results(name="philly", runs=(result("slow", slow=4.0), result("quick"), result("mid", slow=2.0)))
    )
    assert said[0].startswith("quick finished jobs soonest")
    assert "50 % sooner than mid, the next, and 75 % sooner than slow, the last" in said[0]


def test_what_is_alike_is_not_called_sooner():
    alike = (result("a"), result("b"))
    assert findings(Results(name="philly", runs=alike))[0].startswith(
        "All policies alike (a, b) finished jobs after"
    )
    said = findings(Results(name="philly", runs=(*alike, result("slow", slow=2.0))))[0]
    assert said.startswith("a and b finished jobs soonest")
    assert said.endswith("50 % sooner than slow, the next.")


def test_one_policy_is_compared_with_none():
    said = " ".join(findings(Results(name="philly", runs=(result("alone"),))))
    assert "alone finished jobs after" in said
    assert "soone" not in said


def test_seeds_are_averaged_and_their_spread_is_shown():
    html = render(Results(name="philly", runs=tuple(result(seed=seed) for seed in range(3))))
    assert "Means over 3 seeds" in html
    assert "± " in html


def test_what_makes_a_result_doubtful_is_said():
    said = warnings(
        Results(
            name="philly",
            runs=(result(unfinished=2, rejected=tuple((f"big-{row}", "too large") for row in range(7))),),
        )
    )
    assert said[0].startswith("7 jobs can never run here")
    assert "and 2 more" in said[0]
    assert "2 jobs had not ended" in said[1]


@given(
    st.lists(st.tuples(st.floats(0.01, 50), st.floats(0, 100)), max_size=20),
    st.integers(1, 30),
)
@settings(max_examples=40)
def test_binned_keeps_the_area_under_a_level(steps: list[tuple[float, float]], bins: int):
    time_s = np.cumsum([length for length, _ in steps])
    level = np.array([height for _, height in steps])
    end_s = float(time_s[-1]) + 10.0 if steps else 1.0
    edges = np.linspace(0.0, end_s, bins + 1)
    area = float((level * np.diff(np.append(time_s, end_s))).sum()) if steps else 0.0
    assert float((binned(time_s, level, edges) * np.diff(edges)).sum()) == pytest.approx(area)


def test_binned_of_a_level_is_that_level():
    assert binned(np.array([0.0]), np.array([3.0]), np.array([0.0, 1.0, 4.0])).tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [(0.01, (1.0, "s")), (89, (1.0, "s")), (90, (60.0, "min")), (1e4, (3600.0, "h")), (1e6, (86_400.0, "d"))],
)
def test_an_axis_has_the_unit_that_suits(seconds: float, unit: tuple[float, str]):
    assert time_unit(seconds) == unit


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (7, "7"), (0.12, "0.12"), (45.25, "45.2"), (12345.6, "12,346"), (100, "100")],
)
def test_numbers_have_three_figures(value: float, said: str):
    assert number(value) == said
