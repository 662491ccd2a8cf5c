"""Verdict on a run: all checks on its evidence, and the figures of the result."""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks.faulting import checker
from benchmarks.faulting.evidence import Finding
from benchmarks.faulting.histories import anomalies
from benchmarks.faulting.run import Evidence, Order

PROMISES = (
    "lost_jobs",
    "doubled_jobs",
    "double_slots",
    "lost_samples",
    "repeated_samples",
    "stale_writes",
    "differing_losses",
    "left_behind",
    "anomalies",
)


def findings(evidence: Evidence) -> list[Finding]:
    """Return every violation of a guarantee."""
    found = [
        *checker.lost_jobs(evidence.submissions, evidence.endings),
        *checker.unfinished_work(
            evidence.submissions, evidence.endings, evidence.results.keys(), evidence.finished
        ),
        *checker.doubled_jobs(evidence.submissions, evidence.endings),
        *checker.double_slots(evidence.lives),
        *checker.stale_checkpoints(evidence.sealed),
        *checker.stale_states(evidence.sightings),
        *checker.left_behind(evidence.left),
        *anomalies(evidence.history),
    ]
    succeeded = {ending.job for ending in evidence.endings if ending.state == "SUCCEEDED"}
    for one in evidence.submissions:
        result = evidence.results.get(one.job or "")
        if result is None or one.job not in succeeded:
            continue  # a cancelled job has trained on a part of its samples only
        found += checker.lost_samples(one.name, result)
        found += checker.repeated_samples(one.name, result)
        found += checker.differing_losses(one.name, result, evidence.undisturbed[one.seed])
    return found


def summary(order: Order, evidence: Evidence, found: list[Finding]) -> dict[str, Any]:
    """Return the figures of the result."""
    broken = Counter(one.promise for one in found)
    states = Counter(ending.state for ending in evidence.endings)
    exact = [audit for audit in evidence.audits.values() if audit[1]]
    return {
        "seed": order.seed,
        "minutes": order.minutes,
        "faults": sum(evidence.faults.values()),
        **{promise: broken[promise] for promise in PROMISES},
        "jobs": len(evidence.endings),
        "jobs_by_state": dict(sorted(states.items())),
        "acknowledged": sum(one.job is not None for one in evidence.submissions),
        "faults_by_kind": dict(sorted(evidence.faults.items())),
        "without": evidence.without,
        "full_storage": evidence.storage,
        "kinds": len(evidence.faults),
        "operations": len(evidence.history),
        "ranks": len(evidence.lives),
        "steps": evidence.steps_taken,
        "checkpoints": len(evidence.sealed),
        "audits_exact": sum(one[0] == one[1] for one in exact),
        "audits": len(exact),
        "recovered_s": evidence.recovered_s,
        "settled_s": evidence.settled_s,
    }
