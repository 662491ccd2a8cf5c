"""The membership that the service orders, as an agent writes it for the ranks of its node.

Standard library only, like `runtime`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from headway.contract.changes import NO_REASON, ChangeReason, reason_of
from headway.contract.values.checks import is_finite
from headway.contract.values.meshes import DIMENSIONS, MeshShape

ORDER_FILE = "order.json"
"""Name of the order file in the control folder; each newer order replaces it as a whole."""
OUTPUT_FILE = "output.json"
"""Name of the file in the control folder with the generation whose rank 0 may write to the output folder here."""
OUTPUT_GIVEN_FILE = "output-given.json"
"""Name of the file in the control folder with the generation since which a process is rank 0 no more, and writes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The global batch that the service chose. Ranks apply it at a step boundary, within the job's bounds.

    `effect` is the exponent of the statistical efficiency by which ranks count progress (`values.efficiency`).
    """

    global_batch: int
    effect: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The membership of `generation` as the service decided it, which is authoritative.

    A process keeps the identity that it was started with, `member_id(generation, rank)` of that start, for
    its whole life. `members` maps each identity to its rank in this generation. A process that is not among
    them leaves and exits with code 0. `store` (`host:port`) is where members meet, under names of this
    generation.

    `lost`: members of an earlier generation are gone, so no rank waits for a step boundary. Otherwise all
    processes of the running generation leave it at one step boundary, on which they agree.

    `losses_per_h`: losses per hour, expected at `losses_at_s` (Unix time), after which the job returns to its
    checkpoint; None: not known. An order may repeat its generation with newer losses.

    `speeds`: expected relative speed of each rank, by rank; empty for equal speeds.

    `mesh`: mesh of a sharded model's ranks; None: all ranks divide its parameters.

    `why`: reason of the change.
    """

    generation: int
    world_size: int
    store: str
    members: dict[str, int]
    lost: bool = False
    batch: BatchPlan | None = None
    losses_per_h: float | None = None
    losses_at_s: float = 0.0
    speeds: tuple[float, ...] = ()
    mesh: MeshShape | None = None
    why: ChangeReason = NO_REASON


def member_id(generation: int, rank: int) -> str:
    """Return the lifelong identity of a process: the generation and rank that it was started with."""
    return f"{generation}.{rank}"


def order_to_json(order: Order) -> str:
    """Return the text of the order file."""
    return json.dumps(asdict(order))


def order_from_json(text: str) -> Order:
    """Read an order from the text of an order file. Unknown fields are ignored: a newer agent may write more.

    Raises:
        ValueError: the text holds no order.
    """
    try:
        fields = json.loads(text)
        batch, losses_per_h, mesh = (fields.get(name) for name in ("batch", "losses_per_h", "mesh"))
        return Order(
            generation=int(fields["generation"]),
            world_size=int(fields["world_size"]),
            store=str(fields["store"]),
            members={str(member): int(rank) for member, rank in fields["members"].items()},
            lost=bool(fields.get("lost", False)),
            batch=_plan(batch) if batch else None,
            losses_per_h=None if losses_per_h is None else _rate(losses_per_h),
            losses_at_s=float(fields.get("losses_at_s", 0.0)),
            speeds=tuple(_speed(one) for one in fields.get("speeds", ())),
            mesh=MeshShape(**{name: int(mesh[name]) for name in DIMENSIONS if name in mesh})
            if mesh
            else None,
            why=reason_of(fields.get("why")),
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not an order: {text[:80]!r}") from error


def generation_to_json(generation: int) -> str:
    """Return the text of a control file that holds only a generation."""
    return json.dumps({"generation": generation})


def generation_from_json(text: str) -> int:
    """Return the generation in the text of a control file that holds only one.

    Raises:
        ValueError: the text holds none.
    """
    fields = json.loads(text)
    generation = fields.get("generation") if isinstance(fields, dict) else None
    if not isinstance(generation, int):
        raise ValueError(f"not a generation: {text[:80]!r}")  # noqa: TRY004  # the text is wrong, not its type
    return generation


def _plan(fields: dict[str, object]) -> BatchPlan:
    effect = fields.get("effect", 1.0)
    if not is_finite(effect) or effect < 0:
        raise ValueError(f"not an exponent: {effect!r}"[:80])
    return BatchPlan(global_batch=int(str(fields["global_batch"])), effect=float(effect))


def _speed(value: object) -> float:
    if not is_finite(value) or value <= 0:
        raise ValueError(f"not a speed: {value!r}"[:80])
    return float(value)


def _rate(value: object) -> float:
    if not is_finite(value) or value < 0:
        raise ValueError(f"not a rate: {value!r}"[:80])
    return float(value)
