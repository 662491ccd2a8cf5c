"""Resolution of deadlocks among jobs that wait for each other's slots."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def deadlocked(waits_for: Mapping[str, Collection[str]], order: Sequence[str]) -> set[str]:
    """Return the jobs that must release their slots before their next ones are free; none without a cycle.

    `waits_for` maps jobs to the jobs whose slots they wait for; a job that is missing waits for none. In each
    cycle the job that comes last in `order` gives way.
    """
    ahead = {job: {other for other in others if other in waits_for} for job, others in waits_for.items()}
    behind: dict[str, set[str]] = {job: set() for job in ahead}
    for job, others in ahead.items():
        for other in others:
            behind[other].add(job)

    def settle(done: list[str]) -> None:
        """Remove jobs that are in no cycle, and then the jobs that are in none without them."""
        while done:
            job = done.pop()
            if job not in ahead:
                continue
            for other in ahead.pop(job):
                behind[other].discard(job)
                if not behind[other]:
                    done.append(other)
            for other in behind.pop(job):
                ahead[other].discard(job)
                if not ahead[other]:
                    done.append(other)

    settle([job for job in waits_for if not ahead[job] or not behind[job]])
    giving_way: set[str] = set()
    for job in reversed(order):
        if job in ahead:
            giving_way.add(job)
            settle([job])
    return giving_way
