"""Settings of a cluster for jobs that compete for slots."""

from __future__ import annotations

from dataclasses import dataclass, replace

RUN_COSTS = 20.0
"""Minimum ratio of a run's length to the cost of its start and stop, so that they take at most 5 % of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionRules:
    """Settings for jobs that compete for slots.

    Attributes:
        min_run_s: minimum run time in seconds before a started job may be vacated for another job's gain. The
            limit is `RUN_COSTS` times the cost of its start and stop if that is more.
        max_wait_s: seconds after which a waiting job gets its turn while the minimums of all jobs do not fit.
        lease_s: seconds for which a running job keeps its slots after a start or change, unless the minimum of
            another job needs them.
        whole_epochs: True if it keeps them until it has trained an epoch on them.
    """

    min_run_s: float = 60.0
    max_wait_s: float = 1800.0
    lease_s: float = 0.0
    whole_epochs: bool = False

    @property
    def leases(self) -> bool:
        """True if running jobs keep their slots for some time after each change."""
        return self.lease_s > 0 or self.whole_epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """Published rhythm of a policy, without which its decisions would stop and restart jobs all the time.

    Attributes:
        round_s: seconds between two rounds. A replay of the published system keeps them; the service decides on
            events as well.
        lease_s: seconds for which a started or changed job keeps its slots.
        whole_epochs: True if a job changes its slots only after an epoch on them.
        in_place: True if a change of slots needs no restart.
    """

    round_s: float = 60.0
    lease_s: float = 0.0
    whole_epochs: bool = False
    in_place: bool = False

    def applied(self, rules: ContentionRules) -> ContentionRules:
        """Return the rules of a cluster that follows the policy."""
        return replace(
            rules,
            min_run_s=max(rules.min_run_s, self.lease_s),
            lease_s=max(rules.lease_s, self.lease_s),
            whole_epochs=rules.whole_epochs or self.whole_epochs,
        )


USUAL = ContentionRules()
"""Default rules of a cluster."""
