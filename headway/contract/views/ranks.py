"""Ranks of a job as the API shows them."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel


class RankPart(StrEnum):
    """The part that a process has in its job's training."""

    TRAINS = "trains"
    JOINS = "joins"
    """Started for the next generation, which has not begun."""
    LEAVES = "leaves"
    """Not a member of the next generation, which has been ordered."""


class RankView(BaseModel):
    """One process of a job.

    `member` is its permanent name: the generation and rank of its start, such as `2.1`. The rank changes with the members.
    """

    rank: int
    member: str
    node: str
    slot: int
    pid: int | None
    """Process id on the node; None if the agent has not reported it."""
    part: RankPart
