"""The root of every error that Headway raises for people to read."""

from __future__ import annotations


class HeadwayError(Exception):
    """Something went wrong that a person can act on.

    Args:
        problem: what went wrong, as a sentence.
        hint: what to do next, as a sentence; empty when the problem says it already.
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        self.problem = problem
        self.hint = hint
        super().__init__(f"{problem} {hint}".strip())
