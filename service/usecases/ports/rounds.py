"""Interfaces for scheduling rounds, and for the commands to nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, Protocol

from headway.contract.agents import AnyCommand, NodeState
from headway.contract.values.markets import Market
from headway.contract.views.decisions import RoundView
from headway.contract.views.forecasts import ScoredPrediction
from headway.contract.views.jobs import JobState, Page
from service.domain.allocation.decision.plan import Decision
from service.domain.cluster.snapshot import Measurement, PolicySetting, Snapshot
from service.usecases.ports.facts import CommandTaken


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """An outbox row that is due to be pushed to its node's stream."""

    id: str
    node_id: str
    body: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery of commands: its number, which grows with each, and the time at which it was committed."""

    number: int
    at: datetime


@dataclass(frozen=True, slots=True)
class SlotCount:
    """The number of slots of one device kind, node state, market and price, and the number of them that jobs
    hold. `usd_per_slot_h` is None where the prices by device kind apply.
    """

    node_state: NodeState
    device_kind: str
    slots: int
    held: int
    market: Market = Market.ON_DEMAND
    usd_per_slot_h: float | None = None


@dataclass(frozen=True, slots=True)
class PredictionErrors:
    """The accuracy of `count` predictions.

    `ratios` are the requested quantiles of predicted / measured. `coverage` is the share of measurements
    inside their prediction intervals. Both are NaN without predictions.
    """

    count: int
    ratios: tuple[float, ...]
    coverage: float


class Rounds(Protocol):
    """Snapshots for rounds, the results of rounds, and the policy that operators choose at run time."""

    async def snapshot(
        self, now: datetime, usd_per_slot_h: Mapping[str, float] = MappingProxyType({})
    ) -> Snapshot:
        """Return one consistent snapshot to decide on, priced in dollars per slot-hour by device kind.

        It must be the first statement of its transaction.
        """

    async def store_decisions(self, decisions: Sequence[Decision], round_id: str, now: datetime) -> None:
        """Store the latest decision about each of these jobs."""

    async def store_round(self, round_: RoundView) -> None:
        """Store a round. It replaces the previous round if that one changed nothing."""

    async def policy(self) -> PolicySetting:
        """Return the policy that is in force, with its parameters."""

    async def choose_policy(self, setting: PolicySetting, now: datetime) -> None:
        """Put another policy or other parameters in force. The state that the previous policy carried over is deleted."""

    async def carry_over(self, setting: PolicySetting, state: Mapping[str, Any], now: datetime) -> None:
        """Store the policy's state for the next snapshot. Store nothing if another setting has been chosen since."""


class RoundQueries(Protocol):
    """Rounds and the cluster as the API shows them."""

    async def rounds(self, *, limit: int, cursor: str | None, seen: frozenset[str] | None) -> Page[RoundView]:
        """Return the rounds that changed something and the latest round, newest first.

        Entries about projects that are not in `seen` (None: all are) are left out.
        """

    async def round(self, round_id: str, *, seen: frozenset[str] | None) -> RoundView:
        """Return a round, reduced to the projects in `seen` as in `rounds`; `latest` names the newest.

        Raise NotFound if there is none.
        """

    async def slots(self) -> list[SlotCount]:
        """Return the slots by node state, device kind, market and price."""

    async def nodes(self) -> dict[NodeState, int]:
        """Return the number of nodes in each state."""

    async def leader(self) -> tuple[int, float]:
        """Return the newest leader's term and the seconds since it was renewed; 0 and 0 before the first
        leader.
        """

    async def predictions(self, job_id: str) -> list[ScoredPrediction]:
        """Return the predictions for the job's measured generations.

        Only the latest ones are returned, newest first.
        """

    async def prediction_errors(self, since: datetime, quantiles: Sequence[float]) -> PredictionErrors:
        """Return the accuracy of the predictions made since a moment."""

    async def forecast_errors(
        self, of: Literal["time", "cost"], share: float, since: datetime, quantiles: Sequence[float]
    ) -> PredictionErrors:
        """Return the accuracy of the forecasts kept at a share of the work, for jobs that succeeded since a
        moment. The coverage is the share of jobs that stayed within their P90.
        """

    async def used_since(self, job_id: str, since: datetime, now: datetime) -> tuple[float, dict[str, float]]:
        """Return the seconds for which the job has held slots since a moment, and its slot-seconds by device
        kind.
        """

    async def measured_of_class(self, job_class: str) -> tuple[Measurement, ...]:
        """Return the measurements of the latest jobs of a class."""

    async def ended_samples(self, job_class: str) -> list[float]:
        """Return the number of samples that each of the latest succeeded jobs of a class took."""

    async def live_jobs(self, *, seen: frozenset[str] | None) -> dict[JobState, int]:
        """Return the number of jobs in each state that is not terminal, for the projects in `seen` (None:
        all).
        """


class Commands(Protocol):
    """The outbox of commands to nodes."""

    async def add(self, commands: Sequence[tuple[str, AnyCommand]], now: datetime) -> None:
        """Store commands with the ids of their nodes. They are pushed in this order after the commit."""

    async def acknowledge(
        self, command_ids: Mapping[str, Sequence[str]], now: datetime
    ) -> list[CommandTaken]:
        """Store that nodes, by id, have received these commands. Return the commands that were not acknowledged before."""

    async def take_due(self, now: datetime, push_again_s: float, limit: int) -> list[PendingCommand]:
        """Return unacknowledged commands that were never pushed, or not for `push_again_s`, and mark them as pushed."""

    async def latest_delivery(self) -> Delivery | None:
        """Return the latest delivery that the database knows of, or None before the first."""

    async def begin_delivery(self, now: datetime) -> Delivery:
        """Store and return the next delivery."""

    async def skip_deliveries(self, number: int, now: datetime) -> None:
        """Give later deliveries numbers above `number`."""


class CommandQueue(Protocol):
    """The command streams of the nodes."""

    async def latest(self) -> Delivery | None:
        """Return the latest delivery that the queue has seen, to the millisecond; None if it remembers none.

        Raises:
            Unavailable: the queue does not answer.
        """

    async def push(self, commands: Sequence[PendingCommand], delivery: Delivery) -> bool:
        """Append the commands of a delivery to the streams, and remember the delivery, in one step.

        If the queue has seen a delivery of this number or a higher one, append nothing and return False.

        Raises:
            Unavailable: the queue does not answer.
        """

    async def empty(self, latest: int | None = None) -> int | None:
        """Drop all commands and skip delivery numbers. Return the number that later deliveries must exceed.

        With `latest`, do nothing and return None if the queue has seen another delivery than that since. A repetition
        after a failure is safe.

        Raises:
            Unavailable: the queue does not answer.
        """
