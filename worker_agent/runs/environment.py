"""Environment of a rank: torchrun's variables, Headway's, the job's, and a few of the host's.

A rank does not inherit the agent's own variables, above all its tokens. If a site needs more of them than
this list (credentials of the checkpoint store, for example), `--pass-env` names them.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headway.contract import orders, runtime
from headway.contract.agents import RankSlot, RunCommand, SlotInfo
from headway.contract.values.devices import is_cpu

_PASSED = frozenset(
    {
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "LD_LIBRARY_PATH",
        "CUDA_HOME",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "RES_OPTIONS",
    }
)
QUICK_LOOKUPS = "timeout:1 attempts:3"
"""Options of the resolver, as `RES_OPTIONS`. A store is opened without name servers (`headway.lookups`), but torch connects
to it again by itself, and looks up its name: with a lost answer 5 s, as glibc's default is, and 10 s or more without a server."""
_PASSED_PREFIXES = ("LC_", "NCCL_", "GLOO_", "UCX_", "FI_", "CUDA_", "NVIDIA_")
"""Prefixes of variables for the locale, and for a site's network and GPUs."""


def base_env(host: Mapping[str, str], pass_env: Sequence[str]) -> dict[str, str]:
    """Return the variables of the agent's environment `host` that every rank gets.

    `PATH` begins with the folder of the agent's Python.
    """
    passed = {
        name: value
        for name, value in host.items()
        if name in _PASSED or name in pass_env or name.startswith(_PASSED_PREFIXES)
    }
    return {**passed, **_user_packages(), "PATH": _path(host)}


def threads_per_rank(
    job_env: Mapping[str, str], *, cpus: int, slots: Sequence[SlotInfo], cpus_per_slot: float | None = None
) -> int:
    """Return the threads of CPU operators in a rank: the job's setting, or else its share of the cores.

    A CPU slot stands for one core, so its rank gets one thread, unless the job requests more.
    """
    wanted = job_env.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    if cpus_per_slot is not None:
        return max(1, int(cpus_per_slot))
    if any(is_cpu(slot.device_kind) for slot in slots):
        return 1
    return max(1, cpus // max(1, len(slots)))


def rank_env(
    command: RunCommand,
    rank: RankSlot,
    *,
    base: Mapping[str, str],
    control: Path,
    devices: str,
    threads: int,
    agent_keeps_store: bool,
) -> dict[str, str]:
    """Return the complete environment of one rank. `devices` is `CUDA_VISIBLE_DEVICES`.

    A rank without `launch: torchrun` gets none of torchrun's variables: scripts that check `RANK` then train
    as one process.
    """
    launcher = {}
    if command.launch == "torchrun":
        launcher = _torchrun(command, rank, control, agent_keeps_store=agent_keeps_store)
    defaults = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    return {
        "RES_OPTIONS": QUICK_LOOKUPS,
        **base,
        **defaults,
        **command.env,
        **launcher,
        **_headway(command, rank, control),
        "CUDA_VISIBLE_DEVICES": devices,
    }


def visible_devices(command: RunCommand, slots: Mapping[int, SlotInfo]) -> str:
    """Return `CUDA_VISIBLE_DEVICES` for every rank of the job on this node: empty on CPU slots.

    It lists all GPUs of the job in the order of local ranks, as under torchrun, since scripts choose by
    LOCAL_RANK.
    """
    ordered = sorted(command.ranks, key=lambda rank: rank.local_rank)
    return ",".join(slots[rank.slot].uuid or "" for rank in ordered).strip(",")


def environment_variables(base: Mapping[str, str], environment: Path) -> dict[str, str]:
    """Return the variables by which a rank finds the Python of its own environment before that of the host."""
    path = os.pathsep.join([str(environment / "bin"), base["PATH"]])
    return {"PATH": path, "VIRTUAL_ENV": str(environment), "PYTHONNOUSERSITE": "1"}


def _torchrun(
    command: RunCommand, rank: RankSlot, control: Path, *, agent_keeps_store: bool
) -> dict[str, str]:
    world = str(command.world_size)
    return {
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.local_rank),
        "GROUP_RANK": str(command.node_rank),
        "ROLE_RANK": str(rank.rank),
        "ROLE_NAME": "default",
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(len(command.ranks)),
        "ROLE_WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": str(command.node_count),
        "MASTER_ADDR": command.master_addr,
        "MASTER_PORT": str(command.master_port),
        "TORCHELASTIC_RUN_ID": command.job_id,
        "TORCHELASTIC_RESTART_COUNT": str(command.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(command.restart_count),
        "TORCHELASTIC_USE_AGENT_STORE": str(agent_keeps_store),
        "TORCHELASTIC_ERROR_FILE": str(control / f"error-{rank.rank}.json"),
    }


def _headway(command: RunCommand, rank: RankSlot, control: Path) -> dict[str, str]:
    env = {
        runtime.ENV_JOB_ID: command.job_id,
        runtime.ENV_JOB_NAME: command.job_name,
        runtime.ENV_ATTEMPT: str(command.attempt),
        runtime.ENV_GENERATION: str(command.generation),
        runtime.ENV_CHECKPOINT_URI: command.checkpoint_uri,
        runtime.ENV_CHECKPOINT_KEEP: str(command.checkpoint_keep),
        runtime.ENV_CONTROL: str(control),
        runtime.ENV_MEMBER: orders.member_id(command.generation, rank.rank),
    }
    if command.joins:
        env[runtime.ENV_JOINS] = "1"
    if command.checkpoint_name is not None:
        env[runtime.ENV_CHECKPOINT_NAME] = command.checkpoint_name
    if command.checkpoint_every_s is not None:
        env[runtime.ENV_CHECKPOINT_EVERY_S] = str(command.checkpoint_every_s)
    if command.losses is not None:
        env[runtime.ENV_LOSSES_PER_H] = str(command.losses.per_h)
    return {**env, **_batch(command)}


def _batch(command: RunCommand) -> dict[str, str]:
    """Return the variables for the job's batch sizes and their division. What the script chooses has none."""
    sizes = {
        runtime.ENV_GLOBAL_BATCH: command.global_batch,
        runtime.ENV_START_GLOBAL_BATCH: command.start_global_batch,
        runtime.ENV_MAX_GLOBAL_BATCH: command.max_global_batch,
        runtime.ENV_MAX_LOCAL_BATCH: command.max_local_batch,
    }
    env = {name: str(size) for name, size in sizes.items() if size is not None}
    if command.batch_effect != 1.0:
        env[runtime.ENV_BATCH_EFFECT] = repr(command.batch_effect)
    if command.lr_rule != "none":
        env[runtime.ENV_LR_RULE] = command.lr_rule
    if command.balance is not None:
        env[runtime.ENV_BALANCE] = command.balance
    if command.speeds:
        env[runtime.ENV_SPEEDS] = ",".join(f"{speed:.6g}" for speed in command.speeds)
    return env


def _user_packages() -> dict[str, str]:
    """Return the folder of the agent user's own Python packages, because HOME of a rank is another folder."""
    used = site.ENABLE_USER_SITE and site.getusersitepackages() in sys.path
    return {"PYTHONUSERBASE": site.getuserbase()} if used else {}


def _path(host: Mapping[str, str]) -> str:
    ours = str(Path(sys.executable).parent)
    return os.pathsep.join([ours, host.get("PATH", os.defpath)])
