"""Settings of nodes of Slurm, from the environment."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.environment import SettingsError, cluster_of, number_of

_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_OURS = frozenset(
    """
    -p --partition -J --job-name -N --nodes -n --ntasks -o --output -e --error -d --dependency --export --exclusive
    --requeue --no-requeue --parsable --wrap --array -a --gres --gpus -G --cpus-per-task -c --hold -H --wait -W
    """.split()  # noqa: SIM905 - read as prose
)
"""Options of `sbatch` that the provider sets itself, or that would change what a lease is."""
_LOG = "/tmp/headway-%j.log"  # noqa: S108 - a file on the node, which Slurm makes as the user
_WAIT_S = 10.0
_MOST_WAIT_S = 60.0
"""The service waits 90 s for a provider, Slurm's commands included, and then no longer knows whether there is a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """Settings of the use of one Slurm cluster by one cluster of Headway."""

    cluster: str
    """Name of this cluster of Headway. It is part of the name of each of its Slurm jobs."""
    partitions: Mapping[str, float]
    """Price of a slot in USD per hour, by the partition that may be used."""
    python: str
    """Interpreter on the nodes, in an environment with Headway's agent."""
    options: tuple[str, ...] = ()
    """Further options of `sbatch`, such as `--account=ml --qos=scavenger --time=4:00:00`."""
    setup: str = ""
    """Lines of shell that run on the node before its agent starts."""
    log: str = _LOG
    """File for the agent's output, in the notation of `sbatch --output`."""
    authority: str = ""
    """Certificates (PEM) that the agent trusts beside those of its node: the contents of the service's `HEADWAY_CA_FILE`."""
    wait_s: float = _WAIT_S
    """Time that a request may wait in Slurm's queue. Longer means that there are no free nodes."""


def read_slurm_settings(env: Mapping[str, str]) -> SlurmSettings:
    """Return the settings of the environment.

    Raises:
        SettingsError: a setting is missing or wrong.
    """
    return SlurmSettings(
        cluster=cluster_of(env),
        partitions=_partitions(env.get("HEADWAY_SLURM_PARTITIONS", "")),
        python=env.get("HEADWAY_SLURM_PYTHON", "").strip() or sys.executable,
        options=_options(env.get("HEADWAY_SLURM_OPTIONS", "")),
        setup=_text_of(env, "HEADWAY_SLURM_SETUP"),
        authority=_text_of(env, "HEADWAY_CA_FILE"),
        log=env.get("HEADWAY_SLURM_LOG", "").strip() or _LOG,
        wait_s=number_of(env, "HEADWAY_SLURM_WAIT_S", _WAIT_S, 1, _MOST_WAIT_S),
    )


def _partitions(text: str) -> Mapping[str, float]:
    prices: dict[str, float] = {}
    for part in (piece.strip() for piece in text.split(",") if piece.strip()):
        name, _, usd = (piece.strip() for piece in part.partition("="))
        price = _number(usd)
        if not _PARTITION.fullmatch(name) or name in prices or price is None or price <= 0:
            raise SettingsError(
                f"HEADWAY_SLURM_PARTITIONS: {part!r} is not of the form PARTITION=USD, with the price of a slot (a GPU, "
                "or a core of nodes without GPUs) for an hour, such as scavenger=0.40."
            )
        prices[name] = price
    if not prices:
        raise SettingsError(
            "HEADWAY_SLURM_PARTITIONS is not set, and HEADWAY_PROVIDERS names slurm; list the partitions that may be "
            "used with the price of a slot for an hour, such as scavenger=0.40,gpu=2."
        )
    return prices


def _options(text: str) -> tuple[str, ...]:
    try:
        options = tuple(shlex.split(text))
    except ValueError as error:
        raise SettingsError(f"HEADWAY_SLURM_OPTIONS: {text!r} has an open quote.") from error
    for option in options:
        name = option.partition("=")[0] if option.startswith("--") else option[:2]
        if name in _OURS or not option.startswith("-"):
            raise SettingsError(
                f"HEADWAY_SLURM_OPTIONS: {option!r} cannot be set here. Write options as --name=value; partition, "
                "nodes, resources, output and dependencies are Headway's own."
            )
    return options


def _text_of(env: Mapping[str, str], setting: str) -> str:
    """Return the contents of the file that a setting names; empty if it names none. Raise SettingsError."""
    name = env.get(setting, "").strip()
    if not name:
        return ""
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{setting}: {name} cannot be read: {error}.") from error


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
