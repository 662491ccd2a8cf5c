from __future__ import annotations

from headway.contract.values.listing import some_of


def test_the_first_are_named_and_the_others_counted():
    assert some_of([], 2) == ""
    assert some_of(["a", "b"], 2) == "a, b"
    assert some_of(["a", "b", "c", "d"], 2) == "a, b and 2 more"
