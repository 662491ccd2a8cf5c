from __future__ import annotations

import pytest

from headway.contract.values.patterns import check_pattern


@pytest.mark.parametrize(
    "pattern",
    [
        r"step (?P<step>-?\d+)",
        r"loss (?P<loss>-?[\d.]+) step (?P<step>\d+)",
        r"(?P<step>[\d,]+)\++",
        r"x?\++ (?P<step>\d+)",
        r"(?P<step>\d+)[^\]]*[+]+",
    ],
)
def test_a_repeat_of_an_escape_or_a_class_is_not_possessive(pattern: str) -> None:
    check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"(?P<step>\d++)", "possessive"),
        (r"(?P<step>\d+)\d?+", "possessive"),
        (r"(?P<step>[0-9]*+)", "possessive"),
        (r"(?<step>\d+)", r"(?P<step>…)"),
        (r"(?'step'\d+)", r"(?P<step>…)"),
        (r"(?<!x)(?P<step>\d+)", "lookaround"),
        (r"(?P<step>\d+", "not a regular expression"),
    ],
)
def test_a_pattern_that_re2_lacks_is_refused_with_its_name_or_the_right_form(
    pattern: str, words: str
) -> None:
    with pytest.raises(ValueError, match=r"cannot be used|not a regular expression") as caught:
        check_pattern(pattern)
    assert words in str(caught.value)
    assert ("named group as" in str(caught.value)) is ("…" in words)
