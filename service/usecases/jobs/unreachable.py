"""Hosts that ranks of a job met apart."""

from __future__ import annotations

from datetime import datetime

import structlog

from service.usecases.ports.facts import WakeUp
from service.usecases.ports.links import LinkRecord
from service.usecases.ports.transactions import Transaction

log = structlog.get_logger()


async def note_unreachable(
    tx: Transaction, source_id: str, target_id: str, *, address: str, port: int, failure: str, at: datetime
) -> None:
    """Store that a rank on node `source_id` could not reach `address`:`port` of node `target_id`.

    `failure` is the sentence that names both ends. No job is placed on both nodes until a probe succeeds, at least
    `JOB_BELIEVED_S` after `at`.
    """
    log.warning("link_failed", node=source_id, failure=failure, met_by="job")
    await tx.links.save(
        [
            LinkRecord(
                source_id=source_id,
                target_id=target_id,
                address=address,
                port=port,
                failure=failure,
                since=at,
                probed_at=at,
                job_at=at,
            )
        ]
    )
    tx.wake(WakeUp.ROUND)
