"""Fragments sent to browsers: after any history, a browser that applies the changes has the page."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.console.html.fragments import Content, Fragment, Listing, PageVersion, changes, redrawn


def render(fragment: Fragment) -> str:
    return f"<p id={fragment.id}>{fragment.value}</p>"


names = st.sampled_from("abcdef")


@st.composite
def contents(draw: st.DrawFn) -> list[Content]:
    """A page with one fragment and one listing, as such a page is at one moment."""
    rows = draw(st.lists(names, unique=True))
    return [
        Fragment("head", "head", draw(st.integers(0, 2))),
        Listing("rows", tuple(Fragment(name, "row", draw(st.integers(0, 2))) for name in rows)),
    ]


class Browser:
    """A browser that applies changes as the script of the pages does."""

    def __init__(self) -> None:
        self.version = 0
        self.fragments: dict[str, str] = {}
        self.rows: list[str] = []

    def take(self, page_version: PageVersion) -> None:
        found: dict[str, Any] = changes(page_version, self.version)
        self.fragments |= found.get("pieces", {})
        self.rows = found.get("orders", {}).get("rows", self.rows)
        self.version = page_version.version

    def shows(self) -> list[str]:
        return [self.fragments["head"], *(self.fragments[one] for one in self.rows)]


@given(st.lists(st.tuples(contents(), st.booleans()), min_size=1))
def test_changes_make_the_page_whatever_was_missed(history: list[tuple[list[Content], bool]]) -> None:
    page_version, browser = PageVersion(), Browser()
    for page, looks in history:
        page_version = redrawn(page_version, page, render)
        if looks:
            browser.take(page_version)
    browser.take(page_version)
    head, rows = page
    assert isinstance(head, Fragment)
    assert isinstance(rows, Listing)
    assert browser.shows() == [render(head), *(render(one) for one in rows.fragments)]


@given(contents())
def test_a_page_that_stays_the_same_is_not_drawn_again(page: list[Content]) -> None:
    once = redrawn(PageVersion(), page, render)

    def never(fragment: Fragment) -> str:
        raise AssertionError(f"{fragment.id} was drawn again")

    again = redrawn(once, page, never)
    assert again is once
    assert changes(again, once.version) == {}


def test_only_what_changed_is_sent() -> None:
    first = redrawn(PageVersion(), [Fragment("a", "m", 1), Fragment("b", "m", 1)], render)
    second = redrawn(first, [Fragment("a", "m", 1), Fragment("b", "m", 2)], render)
    assert changes(second, first.version) == {"pieces": {"b": "<p id=b>2</p>"}}
