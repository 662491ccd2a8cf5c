"""The membership that the service orders, as an agent writes it for the ranks of its node.

Standard library only, as `runtime`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

ORDER_FILE = "order.json"
"""In the control folder, replaced whole by each newer order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How much a step takes, as the service wants it: applied at a step boundary, within the job file's bounds."""

    global_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The membership of `generation`, as the service has decided it: the authority for who trains together.

    A process keeps the identity that it was started with, `member_id(generation, rank)` of that start, for its whole
    life. `members` gives the rank in this generation to each identity; who is not among them leaves, and ends with
    code 0. `store` (`host:port`) is where members meet, under names of this generation.

    `lost`: members of an earlier generation are gone, so nobody waits for a step boundary. Otherwise every
    process of the running generation leaves it at one boundary, which they agree on.
    """

    generation: int
    world_size: int
    store: str
    members: dict[str, int]
    lost: bool = False
    batch: BatchPlan | None = None


def member_id(generation: int, rank: int) -> str:
    """Who a process is for its whole life: the generation and rank that it was started with."""
    return f"{generation}.{rank}"


def order_to_json(order: Order) -> str:
    """The text of the order file."""
    return json.dumps(asdict(order))


def order_from_json(text: str) -> Order:
    """The order in an order file. Unknown fields are ignored, so that an older rank reads a newer agent's.

    Raises:
        ValueError: it is none.
    """
    try:
        fields = json.loads(text)
        batch = fields.get("batch")
        return Order(
            generation=int(fields["generation"]),
            world_size=int(fields["world_size"]),
            store=str(fields["store"]),
            members={str(member): int(rank) for member, rank in fields["members"].items()},
            lost=bool(fields.get("lost", False)),
            batch=BatchPlan(global_batch=int(batch["global_batch"])) if batch else None,
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not an order: {text[:80]!r}") from error
