"""Environment variables of a rank: those of torchrun, and Headway's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from headway.contract import orders, runtime
from headway.contract.changes import STOP_FILE
from headway.contract.values.balance import USUAL_BALANCE, BalanceRule, balance_of
from headway.contract.values.learning_rate_rules import Rule, RuleSetting
from headway.contract.values.meshes import MeshShape, mesh_of
from headway.contract.values.tracker_names import TrackerName


@dataclass(frozen=True, slots=True)
class Job:
    """The job to which a rank belongs."""

    id: str
    name: str
    project: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Settings of this process in the run. The defaults apply to a script started by hand."""

    distributed: bool = False
    """True if a launcher started this process as one of several (`RANK` is set)."""
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    generation: int = 0
    control: Path | None = None
    """The control folder; None outside Headway."""
    store: str | None = None
    """`host:port` of the store that an agent hosts for the job; None without such an agent."""
    joins: bool = False
    """True if this process joins a training that is already running."""
    reach: tuple[str, ...] = ()
    """Stores (`host:port`) on the present members' nodes, if this process joins."""
    checkpoint_uri: str | None = None
    checkpoint_name: str | None = None
    """Last checkpoint that ranks of the job reported, at the start of this process; None without one."""
    checkpoint_every_s: float | None = None
    """Seconds between checkpoints; None: chosen by the cost of a checkpoint."""
    checkpoint_keep: int = 3
    losses_per_h: float | None = None
    """Losses per hour that the service expects at the start; None where it says nothing."""
    global_batch: int | None = None
    """Global batch of the job, which overrides the script's."""
    start_global_batch: int | None = None
    """Global batch of the first steps; None: `global_batch`, which is also the one of the script's learning rate."""
    batch_effect: float = 1.0
    """Exponent of the statistical efficiency of the first steps, see `contract.orders.BatchPlan`."""
    most_global_batch: int | None = None
    """Largest global batch that the service may set; None where the batch is fixed."""
    max_local_batch: int | None = None
    """Upper limit of a micro-batch of the job, which overrides the script's."""
    lr_rule: RuleSetting = "none"
    """Rule by which the learning rate follows the global batch."""
    balance: BalanceRule | None = USUAL_BALANCE
    """Rule for the local batches of ranks of unequal speed; None for even ones."""
    speeds: tuple[float, ...] = ()
    """Expected relative speeds of the ranks at the start, by rank; empty for equal ones."""
    mesh: MeshShape | None = None
    """Mesh of a sharded model at the start; None: all ranks divide its parameters."""
    min_depth: float | None = None
    """Smallest share of the layers that a rank back-propagates through; None: all."""
    redundant: bool = False
    """True if the shards of each rank have a copy on another rank."""
    audits: bool = True
    """True if ranks compare what must be equal on all of them."""
    audits_near: bool = False
    """True if they compare it although their devices round differently, so that parameters may differ a little."""
    host_signals: bool = False
    """True if a batch system sends SIGTERM to the ranks of its host, so that only an announced stop counts at once."""
    trackers: tuple[TrackerName, ...] = ()
    """Trackers that receive reports besides the service."""
    job: Job | None = None
    """The job of this rank; None outside Headway."""

    @property
    def live(self) -> bool:
        """True if the service can change the members of this run while it runs."""
        return self.control is not None and self.store is not None

    @property
    def stop_announcement(self) -> Path | None:
        """File without which a SIGTERM may come from the host's batch system; None if all come from the agent."""
        return self.control / STOP_FILE if self.host_signals and self.control is not None else None

    @property
    def storage_keys(self) -> Path | None:
        """File with the keys for checkpoints, if the service gives out keys."""
        path = None if self.control is None else self.control / runtime.STORAGE_FILE
        return path if path is not None and path.exists() else None

    @property
    def first_order(self) -> orders.Order:
        """The membership for which this process was started, as an order. Needs a store."""
        assert self.store is not None
        members = {orders.member_id(self.generation, rank): rank for rank in range(self.world_size)}
        return orders.Order(
            generation=self.generation,
            world_size=self.world_size,
            store=self.store,
            members=members,
            speeds=self.speeds,
            mesh=self.mesh,
        )

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Environment:
        """Read the settings of a rank from its environment variables.

        Raises:
            ValueError: a variable has an invalid value.
        """
        control, every = env.get(runtime.ENV_CONTROL), env.get(runtime.ENV_CHECKPOINT_EVERY_S)
        losses, depth = env.get(runtime.ENV_LOSSES_PER_H), env.get(runtime.ENV_MIN_DEPTH)
        return cls(
            distributed="RANK" in env,
            rank=_integer(env, "RANK", 0, least=0),
            world_size=_integer(env, "WORLD_SIZE", 1, least=1),
            local_rank=_integer(env, "LOCAL_RANK", 0, least=0),
            generation=_integer(env, runtime.ENV_GENERATION, 0, least=0),
            control=Path(control) if control else None,
            store=_store(env) if control else None,
            joins=env.get(runtime.ENV_JOINS) == "1",
            reach=tuple(filter(None, env.get(runtime.ENV_REACH, "").split(","))),
            checkpoint_uri=env.get(runtime.ENV_CHECKPOINT_URI) or None,
            checkpoint_name=env.get(runtime.ENV_CHECKPOINT_NAME) or None,
            checkpoint_every_s=_seconds(runtime.ENV_CHECKPOINT_EVERY_S, every) if every else None,
            checkpoint_keep=_integer(env, runtime.ENV_CHECKPOINT_KEEP, 3, least=1),
            losses_per_h=_rate(runtime.ENV_LOSSES_PER_H, losses) if losses else None,
            global_batch=_integer(env, runtime.ENV_GLOBAL_BATCH, 0, least=1) or None,
            start_global_batch=_integer(env, runtime.ENV_START_GLOBAL_BATCH, 0, least=1) or None,
            batch_effect=_exponent(env.get(runtime.ENV_BATCH_EFFECT) or "1"),
            most_global_batch=_integer(env, runtime.ENV_MAX_GLOBAL_BATCH, 0, least=1) or None,
            max_local_batch=_integer(env, runtime.ENV_MAX_LOCAL_BATCH, 0, least=1) or None,
            lr_rule=_rule(env.get(runtime.ENV_LR_RULE) or "none"),
            balance=_balance(env.get(runtime.ENV_BALANCE, "")),
            speeds=_speeds(env.get(runtime.ENV_SPEEDS, "")),
            mesh=_mesh(env.get(runtime.ENV_MESH, "")),
            min_depth=_share(runtime.ENV_MIN_DEPTH, depth) if depth else None,
            redundant=_redundant(env.get(runtime.ENV_REDUNDANCY) or "none"),
            audits=_audits(env.get(runtime.ENV_AUDIT) or "replicas"),
            audits_near=env.get(runtime.ENV_AUDIT_NEAR) == "1",
            host_signals=env.get(runtime.ENV_HOST_SIGNALS) == "1",
            trackers=_trackers(env.get(runtime.ENV_TRACKERS, "")),
            job=_job(env),
        )


def _exponent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise ValueError(f"{runtime.ENV_BATCH_EFFECT} is {text!r}; it must be an exponent of at least 0")
    return value


def _rule(text: str) -> RuleSetting:
    rules: tuple[RuleSetting, ...] = ("auto", *get_args(Rule))
    for rule in rules:
        if text == rule:
            return rule
    raise ValueError(f"{runtime.ENV_LR_RULE} is {text!r}; it must be one of {', '.join(rules)}")


def _redundant(text: str) -> bool:
    if text not in {"none", "neighbour"}:
        raise ValueError(f"{runtime.ENV_REDUNDANCY} is {text!r}; it must be none or neighbour")
    return text == "neighbour"


def _audits(text: str) -> bool:
    if text not in {"none", "replicas"}:
        raise ValueError(f"{runtime.ENV_AUDIT} is {text!r}; it must be replicas or none")
    return text == "replicas"


def _balance(text: str) -> BalanceRule | None:
    try:
        return balance_of(text) if text else USUAL_BALANCE
    except ValueError as error:
        raise ValueError(f"{runtime.ENV_BALANCE}: {error}") from error


def _speeds(text: str) -> tuple[float, ...]:
    try:
        speeds = tuple(float(one) for one in text.split(",")) if text else ()
    except ValueError:
        speeds = (0.0,)
    if not all(0.0 < one < math.inf for one in speeds):
        raise ValueError(f"{runtime.ENV_SPEEDS} is {text!r}; it must be numbers above 0, one for each rank")
    return speeds


def _mesh(text: str) -> MeshShape | None:
    try:
        return mesh_of(text) if text else None
    except ValueError as error:
        raise ValueError(f"{runtime.ENV_MESH} is {text!r}: {error}") from error


def _trackers(text: str) -> tuple[TrackerName, ...]:
    named = dict.fromkeys(one.strip() for one in text.split(",") if one.strip())
    known = {name: name for name in get_args(TrackerName)}
    for name in named:
        if name not in known:
            raise ValueError(
                f"{runtime.ENV_TRACKERS} names {name!r}; it must name some of {', '.join(known)}"
            )
    return tuple(known[name] for name in named)


def _job(env: Mapping[str, str]) -> Job | None:
    job_id, name = env.get(runtime.ENV_JOB_ID), env.get(runtime.ENV_JOB_NAME)
    if not job_id or not name:
        return None
    return Job(job_id, name, env.get(runtime.ENV_PROJECT) or "default")


def _store(env: Mapping[str, str]) -> str | None:
    """Return the address of the agent's store from torchrun's variables; None without such a store."""
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    return f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}" if "MASTER_PORT" in env else None


def _integer(env: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = env.get(name)
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ValueError(f"{name} is {text!r}; it must be a whole number of at least {least}")
    return value


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} is {text!r}; it must be a number of seconds above 0")
    return value


def _share(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise ValueError(f"{name} is {text!r}; it must be a number between 0 and 1")
    return value


def _rate(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} is {text!r}; it must be a number of losses per hour of at least 0")
    return value
