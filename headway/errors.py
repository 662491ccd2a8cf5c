"""The root of every error that Headway raises for people to read."""

from __future__ import annotations


class HeadwayError(Exception):
    """Something went wrong that a person can act on.

    Args:
        what: what went wrong, as a sentence.
        hint: what to do next, as a sentence; empty when `what` says it already.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        self.what = what
        self.hint = hint
        super().__init__(f"{what} {hint}".strip())
