"""The snapshot of a cluster as the rules of its policy change it: batches and rhythm."""

from __future__ import annotations

from dataclasses import replace

from service.domain.cluster.snapshot import Snapshot
from service.domain.policies.framework.policy import Policy, keeps_batch, rhythm_of


def following(snapshot: Snapshot, policy: Policy) -> Snapshot:
    """Return the snapshot with the batches and the rules for competing jobs that the policy requires."""
    return replace(
        snapshot,
        keeps_batch=keeps_batch(policy),
        contention=rhythm_of(policy).applied(snapshot.contention),
    )
