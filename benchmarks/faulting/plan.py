"""Which faults come when, as a pure function of a seed: a failing run can be had again."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What can go wrong. The first word is what is done, the rest to whom."""

    KILL_API = "kill_api"
    KILL_SCHEDULER = "kill_scheduler"
    KILL_AGENT = "kill_agent"
    KILL_LAUNCHER = "kill_launcher"
    KILL_RANK = "kill_rank"
    KILL_POSTGRES = "kill_postgres"
    CRASH_POSTGRES = "crash_postgres"
    """An immediate shutdown: every session is cut off, and the next start recovers from the log."""
    KILL_REDIS = "kill_redis"
    FLUSH_REDIS = "flush_redis"
    FREEZE_API = "freeze_api"
    """SIGSTOP, and SIGCONT after a while; so the others."""
    FREEZE_SCHEDULER = "freeze_scheduler"
    FREEZE_AGENT = "freeze_agent"
    FREEZE_LAUNCHER = "freeze_launcher"
    FREEZE_RANK = "freeze_rank"
    FREEZE_ALL_SERVICES = "freeze_all_services"
    """Every API and every scheduler at once: the control plane is away, and jobs go on."""
    CUT = "cut"
    """The open connections of one link end, all at once."""
    REFUSE = "refuse"
    """A link accepts no connection for a while."""
    BLACKHOLE = "blackhole"
    """A link swallows everything for a while."""
    DELAY = "delay"
    """Everything on a link comes late for a while."""
    PARTITION = "partition"
    """A node does not reach the API for longer than its lease."""
    FILL_STORAGE = "fill_storage"
    """Object storage takes no byte more for a while."""
    FILL_AGENT = "fill_agent"
    """The disk with an agent's folder takes no byte more for a while."""
    JUMP_CLOCK = "jump_clock"
    """The wall clock of one service process is wrong by `amount` seconds for a while."""


class Action(StrEnum):
    """What users do meanwhile."""

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
}
"""How often a kind comes, beside the others."""

_LASTS_S: Mapping[Kind, tuple[float, float]] = {
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
}
"""For how long, at the least and at the most, what passes lasts."""
_JUMPS_S = (-3600.0, -60.0, -5.0, 5.0, 60.0, 3600.0)
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
_EARLIEST_S = 4.0
"""Something should run before the first fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `target` chooses among those that are there at the moment, modulo how many they are.

    `lasts_s` is 0 for what is over at once; `amount` is the seconds of a delay or of a jump of the clock.
    """

    at_s: float
    kind: Kind
    target: int
    lasts_s: float = 0.0
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class Deed:
    """What a user does. `target` as in `Fault`; `lasts_s` is when a pause or a drain is taken back."""

    at_s: float
    action: Action
    target: int
    lasts_s: float
    amount: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is done to the cluster, in the order of time."""

    faults: tuple[Fault, ...]
    deeds: tuple[Deed, ...]


def make_plan(
    seed: int,
    *,
    minutes: float,
    faults: int,
    lease_s: float,
    without: Sequence[Kind] = (),
    jobs: int,
) -> Plan:
    """The plan of a seed.

    Args:
        seed: everything random comes from it.
        minutes: when the last fault begins, at the latest.
        faults: how many.
        lease_s: of nodes; a partition lasts longer.
        without: kinds that this machine cannot have.
        jobs: how many are submitted on the way.
    """
    dice = random.Random(seed)
    end_s = 60 * minutes
    kinds = [kind for kind in Kind if kind not in without]
    # Each kind once, as far as they go, then by their weights: a short run meets as many as it can.
    first = sorted(kinds, key=lambda kind: dice.random() ** (1 / WEIGHTS[kind]), reverse=True)
    more = dice.choices(kinds, [WEIGHTS[kind] for kind in kinds], k=max(0, faults - len(first)))
    chosen = [*first, *more][:faults]
    dice.shuffle(chosen)
    times = sorted(dice.uniform(_EARLIEST_S, end_s) for _ in chosen)
    happening = tuple(_fault(dice, at_s, kind, lease_s) for at_s, kind in zip(times, chosen, strict=True))
    return Plan(happening, _deeds(dice, end_s, jobs))


def _fault(dice: random.Random, at_s: float, kind: Kind, lease_s: float) -> Fault:
    target = dice.randrange(_TARGETS)
    if kind is Kind.PARTITION:
        return Fault(at_s, kind, target, lease_s + dice.uniform(2, 6))
    lasts_s = dice.uniform(*_LASTS_S[kind]) if kind in _LASTS_S else 0.0
    amounts = {Kind.DELAY: _DELAYS_S, Kind.JUMP_CLOCK: _JUMPS_S}.get(kind, (0.0,))
    return Fault(at_s, kind, target, lasts_s, dice.choice(amounts))


def _deeds(dice: random.Random, end_s: float, jobs: int) -> tuple[Deed, ...]:
    """`jobs` submits, spread evenly with some noise, and other deeds in proportion."""
    share = sum(_ACTIONS.values()) / _ACTIONS[Action.SUBMIT]
    others = [action for action in _ACTIONS if action is not Action.SUBMIT]
    weights = [_ACTIONS[action] for action in others]
    actions = [Action.SUBMIT] * jobs + dice.choices(others, weights, k=round(jobs * (share - 1)))
    deeds = [
        Deed(
            dice.uniform(0, end_s),
            action,
            dice.randrange(_TARGETS),
            dice.uniform(1, 10),
            dice.randrange(_TARGETS),
        )
        for action in actions
    ]
    return tuple(sorted(deeds, key=lambda deed: deed.at_s))
