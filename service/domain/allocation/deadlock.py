"""Jobs that wait for each other's slots: who must give way so that all the others go on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def deadlocked(waits_for: Mapping[str, Collection[str]], order: Sequence[str]) -> set[str]:
    """Who must give up its slots although its own place is not free yet; none if nobody waits in a circle.

    `waits_for` says which jobs each waits for; one that is not in it waits for nobody. Of a circle the job that comes last
    in `order` gives way.
    """
    ahead = {job: {other for other in others if other in waits_for} for job, others in waits_for.items()}
    behind: dict[str, set[str]] = {job: set() for job in ahead}
    for job, others in ahead.items():
        for other in others:
            behind[other].add(job)

    def settle(done: list[str]) -> None:
        """Drop jobs that are in no circle, and whatever is in none without them."""
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
