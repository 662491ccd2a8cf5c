"""A policy under which jobs take turns at the slots."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from service.extending import Choices, Policy, RoundHistory, RoundInput, Solve, parameter, served


@dataclass(frozen=True, slots=True)
class Credit:
    """Jobs at their requested sizes: a waiting job earns credit, and a running job spends it."""

    name: ClassVar[str] = "credit"
    protocol: ClassVar[int] = 1
    price: float = parameter(2.0, "Credit that a second with slots costs; a wait earns 1.", above=0)

    def advance(self, given: RoundInput, history: RoundHistory) -> tuple[Policy, Mapping[str, Any]]:
        """Return the policy of this round, and every job's credit in seconds."""
        before = history.state.get("credit_s", {})
        earned_s = np.where(given.current >= 0, -self.price, 1.0) * history.elapsed_s
        jobs = zip(history.job_ids, earned_s.tolist(), strict=True)
        credit_s = {job: before.get(job, 0.0) + seconds for job, seconds in jobs}
        order = np.argsort(-np.array(list(credit_s.values())), kind="stable")
        return InOrder(order), {"credit_s": credit_s}

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return the choices in order of submission, for callers without state."""
        return served(given, np.arange(len(given.goodput)))


@dataclass(frozen=True, slots=True)
class InOrder:
    """The policy of one round."""

    order: np.ndarray
    name: ClassVar[str] = Credit.name

    def choose(self, given: RoundInput, solve: Solve) -> Choices:
        """Return the choices in descending order of credit."""
        return served(given, self.order)
