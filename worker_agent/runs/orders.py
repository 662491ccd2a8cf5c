"""Delivery of orders of members to the ranks, as files that ranks check between two steps.

The newest order of a job is stored beside its runs, so that a run finds it regardless of which arrives first.
An older order never replaces a newer one; within a generation the newest expected losses count. A run gets
no order from before its own generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import structlog

from headway.contract.agents import Member, OrderCommand
from headway.contract.changes import NO_REASON, ChangeKind, ChangeReason, StopNotice, stop_to_json
from headway.contract.orders import BatchPlan, Order, member_id, order_from_json, order_to_json
from headway.contract.values.meshes import mesh_of
from worker_agent.host.folders import RunFolder, boot_s, write_text

_log = structlog.get_logger()

AGENT_ENDS = ChangeReason(ChangeKind.DRAIN, "the agent of its node ends")
"""Reason of the stop of all runs before an agent ends."""


def order_of(command: OrderCommand) -> Order:
    """Return the order in the format that ranks read."""
    batch, losses = command.batch, command.losses
    return Order(
        generation=command.generation,
        world_size=len(command.members),
        store=f"{command.store_addr}:{command.store_port}",
        members={member_id(one.born_generation, one.born_rank): one.rank for one in command.members},
        lost=command.lost,
        batch=BatchPlan(global_batch=batch.global_batch, effect=batch.effect) if batch else None,
        losses_per_h=losses.per_h if losses else None,
        losses_at_s=losses.at.timestamp() if losses else 0.0,
        speeds=speeds_of(command.members),
        mesh=mesh_of(command.mesh) if command.mesh else None,
        why=command.why or NO_REASON,
    )


def speeds_of(members: Sequence[Member]) -> tuple[float, ...]:
    """Return the expected relative speeds by rank; empty if they are equal."""
    speeds = tuple(one.speed for one in sorted(members, key=lambda one: one.rank))
    return speeds if len(set(speeds)) > 1 else ()


def deliver(folder: RunFolder) -> None:
    """Copy the newest order of the job to the ranks of a run, unless it is from before their generation."""
    order = read(folder.job.order)
    if order is not None and order.generation >= folder.generation:
        store_newest(folder.order, order)


def store_newest(path: Path, order: Order) -> None:
    """Write the order to the file, unless the file has a newer one."""
    present = read(path)
    if present is None or _age(present) < _age(order):
        write_text(path, order_to_json(order), 0o640)  # ranks with their own user read it by group


def announce_stop(folder: RunFolder, kill_at_s: float | None, why: ChangeReason) -> None:
    """Tell the ranks of a run that and why they are stopped, and killed at `kill_at_s` (boot-time clock; None: never).

    A failure is only logged: ranks between two steps follow the signal alone.
    """
    if kill_at_s is None:
        return
    try:
        notice = StopNotice(grace_s=max(0.0, kill_at_s - boot_s()), kill_at_s=kill_at_s, why=why)
        write_text(folder.stop, stop_to_json(notice), 0o640)
    except OSError as error:
        _log.warning("could not announce a stop", run=folder.name, error=str(error))


def _age(order: Order) -> tuple[int, float]:
    return order.generation, order.losses_at_s


def read(path: Path) -> Order | None:
    """Return the order in the file, or None if there is none or a script has overwritten it."""
    try:
        return order_from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        _log.warning("replacing an order file that cannot be parsed", path=str(path), error=str(error))
        return None
