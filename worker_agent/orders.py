"""Hand orders of members on to the ranks: files that they look at between two steps.

The newest order of a job is kept beside its runs, so that a run finds it whichever of the two arrives first. An
older order never replaces a newer one, and a run is not given one from before its own generation.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from headway.contract.agents import OrderCommand
from headway.contract.orders import BatchPlan, Order, member_id, order_from_json, order_to_json
from worker_agent.folders import JobFolder, RunFolder, write_text

_log = structlog.get_logger()


def order_of(command: OrderCommand) -> Order:
    """The order as ranks read it."""
    batch = command.batch
    return Order(
        generation=command.generation,
        world_size=len(command.members),
        store=f"{command.store_addr}:{command.store_port}",
        members={member_id(one.born_generation, one.born_rank): one.rank for one in command.members},
        lost=command.lost,
        batch=BatchPlan(global_batch=batch.global_batch) if batch else None,
    )


def keep(job: JobFolder, order: Order) -> None:
    """Remember the order if it is the newest of the job."""
    _replace_older(job.order, order)


def deliver(job: JobFolder, folder: RunFolder) -> None:
    """Show the newest order of the job to the ranks of a run, unless it is from before their time."""
    order = _read(job.order)
    if order is not None and order.generation >= int(folder.path.name):
        _replace_older(folder.order, order)


def generation_in(path: Path) -> int:
    """The generation of the order in this file; 0 without one."""
    order = _read(path)
    return 0 if order is None else order.generation


def _replace_older(path: Path, order: Order) -> None:
    present = _read(path)
    if present is None or present.generation < order.generation:
        write_text(path, order_to_json(order), 0o640)  # ranks with a user of their own read it by their group


def _read(path: Path) -> Order | None:
    """The order in the file; None when there is none, or what is there is not one: a script may write there."""
    try:
        return order_from_json(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        _log.warning("replacing an order that cannot be read", path=str(path), error=str(error))
        return None
