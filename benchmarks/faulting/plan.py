"""Plan of the faults and user actions as a pure function of a seed, so that a failing run can be repeated."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Kind of fault. The first word is the fault, the rest its target."""

    KILL_API = "kill_api"
    KILL_SCHEDULER = "kill_scheduler"
    KILL_AGENT = "kill_agent"
    KILL_LAUNCHER = "kill_launcher"
    KILL_RANK = "kill_rank"
    KILL_POSTGRES = "kill_postgres"
    CRASH_POSTGRES = "crash_postgres"
    """Immediate shutdown: all sessions end, and the next start recovers from the write-ahead log."""
    KILL_REDIS = "kill_redis"
    FLUSH_REDIS = "flush_redis"
    RESTORE_REDIS = "restore_redis"
    """Redis gets back the data that it had a while ago, as from an old dump."""
    KILL_ANSWERING = "kill_answering"
    """An API is killed after it has executed a change and before its answer leaves. A submit follows, so that there is one."""
    FREEZE_API = "freeze_api"
    """SIGSTOP, and SIGCONT after a while, as in the other freezes."""
    FREEZE_SCHEDULER = "freeze_scheduler"
    FREEZE_AGENT = "freeze_agent"
    FREEZE_LAUNCHER = "freeze_launcher"
    FREEZE_RANK = "freeze_rank"
    FREEZE_ALL_SERVICES = "freeze_all_services"
    """Freeze of every API and scheduler at once: the control plane is unavailable, and jobs continue."""
    CUT = "cut"
    """Reset of all open connections of one link."""
    REFUSE = "refuse"
    """A link refuses connections for a while."""
    BLACKHOLE = "blackhole"
    """A link forwards nothing for a while."""
    DELAY = "delay"
    """A link delays all data for a while."""
    PARTITION = "partition"
    """A node does not reach the API for longer than its lease."""
    FILL_STORAGE = "fill_storage"
    """Object storage is full for a while."""
    FILL_AGENT = "fill_agent"
    """The disk with an agent's folder is full for a while."""
    JUMP_CLOCK = "jump_clock"
    """The wall clock of one service process is wrong by `amount` seconds for a while."""
    CUT_PAIR = "cut_pair"
    """Two hosts lose all packets to each other for a while."""
    ONE_WAY = "one_way"
    """A host loses all packets to another one for a while, and still receives its packets."""
    FLAP = "flap"
    """The link of a host is off and on in turns for a while."""
    SLOW_LINK = "slow_link"
    """The link of a host has a rate of `amount` Mbit/s for a while."""
    LOSE_SERVICE = "lose_service"
    """A host loses all packets to the API for a while."""
    LOSE_QUEUE = "lose_queue"
    """A host loses all packets to Redis for a while."""
    VANISH = "vanish"
    """A host loses all packets from and to it for longer than its lease."""


HOST_KINDS = frozenset(
    {
        Kind.CUT_PAIR,
        Kind.ONE_WAY,
        Kind.FLAP,
        Kind.SLOW_LINK,
        Kind.LOSE_SERVICE,
        Kind.LOSE_QUEUE,
        Kind.VANISH,
    }
)
"""Faults of the network between hosts, which need hosts of their own."""


class Action(StrEnum):
    """Action of a user."""

    SUBMIT = "submit"
    RESIZE = "resize"
    PAUSE = "pause"
    CANCEL = "cancel"
    DRAIN = "drain"
    CORDON = "cordon"


WEIGHTS: Mapping[Kind, float] = {
    Kind.KILL_API: 2,
    Kind.KILL_SCHEDULER: 2,
    Kind.KILL_AGENT: 3,
    Kind.KILL_LAUNCHER: 2,
    Kind.KILL_RANK: 4,
    Kind.KILL_POSTGRES: 1.5,
    Kind.CRASH_POSTGRES: 0.5,
    Kind.KILL_REDIS: 1,
    Kind.FLUSH_REDIS: 1.5,
    Kind.RESTORE_REDIS: 1,
    Kind.KILL_ANSWERING: 1,
    Kind.FREEZE_API: 1,
    Kind.FREEZE_SCHEDULER: 1.5,
    Kind.FREEZE_AGENT: 1.5,
    Kind.FREEZE_LAUNCHER: 1,
    Kind.FREEZE_RANK: 2,
    Kind.FREEZE_ALL_SERVICES: 1,
    Kind.CUT: 3,
    Kind.REFUSE: 1.5,
    Kind.BLACKHOLE: 1.5,
    Kind.DELAY: 1.5,
    Kind.PARTITION: 1,
    Kind.FILL_STORAGE: 1.5,
    Kind.FILL_AGENT: 1.5,
    Kind.JUMP_CLOCK: 1.5,
    Kind.CUT_PAIR: 3,
    Kind.ONE_WAY: 3,
    Kind.FLAP: 2,
    Kind.SLOW_LINK: 2,
    Kind.LOSE_SERVICE: 1.5,
    Kind.LOSE_QUEUE: 1.5,
    Kind.VANISH: 1.5,
}
"""Relative frequencies of the kinds."""

_LASTS_S: Mapping[Kind, tuple[float, float]] = {
    Kind.RESTORE_REDIS: (3, 30),
    Kind.KILL_ANSWERING: (5, 10),
    Kind.FREEZE_API: (1, 12),
    Kind.FREEZE_SCHEDULER: (1, 60),
    Kind.FREEZE_AGENT: (1, 12),
    Kind.FREEZE_LAUNCHER: (1, 8),
    Kind.FREEZE_RANK: (0.5, 8),
    Kind.FREEZE_ALL_SERVICES: (3, 15),
    Kind.REFUSE: (1, 10),
    Kind.BLACKHOLE: (1, 12),
    Kind.DELAY: (2, 15),
    Kind.FILL_STORAGE: (2, 12),
    Kind.FILL_AGENT: (1, 8),
    Kind.JUMP_CLOCK: (3, 20),
    Kind.CUT_PAIR: (1, 30),
    Kind.ONE_WAY: (1, 30),
    Kind.FLAP: (3, 20),
    Kind.SLOW_LINK: (5, 30),
    Kind.LOSE_SERVICE: (1, 30),
    Kind.LOSE_QUEUE: (1, 30),
}
"""Minimum and maximum duration in seconds of temporary faults."""
_JUMPS_S = (-3600.0, -60.0, -5.0, 5.0, 60.0, 3600.0)
_RATES_MBIT_PER_S = (1.0, 10.0, 100.0)
_DELAYS_S = (0.05, 0.3, 1.0)
_ACTIONS: Mapping[Action, float] = {
    Action.SUBMIT: 4,
    Action.RESIZE: 4,
    Action.PAUSE: 2,
    Action.CANCEL: 1,
    Action.DRAIN: 1.5,
    Action.CORDON: 1,
}
_TARGETS = 2**16
_ARMED_S = 0.1
"""Seconds from the begin of a fault to the submit that it waits for."""
_EARLIEST_S = 4.0
"""Earliest time of a fault in seconds, so that jobs run before it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Planned fault.

    `target` modulo the number of present targets is the index of the chosen one. `lasts_s` is 0 for an instantaneous fault.
    `amount` is the length of a delay or of a jump of the clock, in seconds, or the rate of a link in Mbit/s.
    """

    at_s: float
    kind: Kind
    target: int
    lasts_s: float = 0.0
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class UserAction:
    """Planned action of a user. `target` is chosen as in `Fault`. A pause, drain or cordon is reverted after `lasts_s`."""

    at_s: float
    kind: Action
    target: int
    lasts_s: float
    amount: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Faults and user actions of a run, ordered by time."""

    faults: tuple[Fault, ...]
    actions: tuple[UserAction, ...]


def make_plan(
    seed: int,
    *,
    minutes: float,
    faults: int,
    lease_s: float,
    without: Sequence[Kind] = (),
    jobs: int,
) -> Plan:
    """Return the plan of a seed.

    Args:
        seed: source of all randomness.
        minutes: latest begin of a fault.
        faults: number of faults.
        lease_s: lease of nodes; a partition lasts longer.
        without: kinds that are not possible on this machine.
        jobs: number of submits during the run, besides those that a kind of fault needs.
    """
    dice = random.Random(seed)
    end_s = 60 * minutes
    kinds = [kind for kind in Kind if kind not in without]
    # Each kind comes once before any kind repeats, so that a short run has as many kinds as possible.
    first = sorted(kinds, key=lambda kind: dice.random() ** (1 / WEIGHTS[kind]), reverse=True)
    more = dice.choices(kinds, [WEIGHTS[kind] for kind in kinds], k=max(0, faults - len(first)))
    chosen = [*first, *more][:faults]
    dice.shuffle(chosen)
    times = sorted(dice.uniform(_EARLIEST_S, end_s) for _ in chosen)
    happening = tuple(_fault(dice, at_s, kind, lease_s) for at_s, kind in zip(times, chosen, strict=True))
    submits = [
        UserAction(fault.at_s + _ARMED_S, Action.SUBMIT, fault.target, 0.0, fault.target)
        for fault in happening
        if fault.kind is Kind.KILL_ANSWERING
    ]
    actions = sorted([*_user_actions(dice, end_s, jobs), *submits], key=lambda one: one.at_s)
    return Plan(happening, tuple(actions))


def _fault(dice: random.Random, at_s: float, kind: Kind, lease_s: float) -> Fault:
    target = dice.randrange(_TARGETS)
    if kind in {Kind.PARTITION, Kind.VANISH}:
        return Fault(at_s, kind, target, lease_s + dice.uniform(2, 6))
    lasts_s = dice.uniform(*_LASTS_S[kind]) if kind in _LASTS_S else 0.0
    amounts = {
        Kind.DELAY: _DELAYS_S,
        Kind.JUMP_CLOCK: _JUMPS_S,
        Kind.SLOW_LINK: _RATES_MBIT_PER_S,
    }.get(kind, (0.0,))
    return Fault(at_s, kind, target, lasts_s, dice.choice(amounts))


def _user_actions(dice: random.Random, end_s: float, jobs: int) -> tuple[UserAction, ...]:
    """Return `jobs` submits at uniformly random times, and other actions in proportion."""
    share = sum(_ACTIONS.values()) / _ACTIONS[Action.SUBMIT]
    others = [action for action in _ACTIONS if action is not Action.SUBMIT]
    weights = [_ACTIONS[action] for action in others]
    kinds = [Action.SUBMIT] * jobs + dice.choices(others, weights, k=round(jobs * (share - 1)))
    actions = [
        UserAction(
            dice.uniform(0, end_s),
            action,
            dice.randrange(_TARGETS),
            dice.uniform(1, 10),
            dice.randrange(_TARGETS),
        )
        for action in kinds
    ]
    return tuple(sorted(actions, key=lambda one: one.at_s))
