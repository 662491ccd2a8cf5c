"""Command-line options of the agent."""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from headway.contract.spec import NAME_PATTERN
from headway.contract.values.quantities import parse_size_bytes
from headway.contract.values.topology import parse_labels
from headway.errors import HeadwayError
from headway.exposing import Bind
from worker_agent.environments.cache import CACHE_BYTES
from worker_agent.host import pilot
from worker_agent.host.folders import StateFolder
from worker_agent.host.metadata import EC2_URL
from worker_agent.host.network import own_address
from worker_agent.host.pilot import PilotLimits
from worker_agent.host.ports import Ports
from worker_agent.isolation.modes import KINDS, Kind, UserIds

_KIND = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}$")

_EPILOG = """\
The agent joins the service, starts the ranks that the service assigns to it, and reports. You can stop and
restart it at any time: its ranks continue until the lease expires. With --own-jobs, they are stopped with
the agent. SIGTERM or SIGINT ends the agent.

exit codes: 0 ended by a signal; 2 wrong usage; 78 permanently refused (wrong token, name taken, folder in
use), so that a restart does not help.

On a spot machine, set HEADWAY_METADATA=ec2, or HEADWAY_METADATA_URL to a compatible metadata service. After
an interruption notice, Headway moves the jobs before the provider takes the machine away. Inside a batch job
of Slurm, set HEADWAY_METADATA=slurm, and in a pod HEADWAY_METADATA=kubernetes: SIGTERM is then the notice, and the
agent ends when no job is left.

example:
  headway agent --url http://10.0.0.1:8123 --token "$HEADWAY_JOIN_TOKEN" --slots 2
"""


_PILOTS = frozenset({"slurm", "kubernetes"})
"""Engines that announce the end of an agent by SIGTERM."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the agent. None means that the agent determines the value itself."""

    url: str
    token: str
    """Join token; empty for an agent that has joined before and has its own token."""
    name: str
    state_dir: Path
    slots: int | None
    device_kind: str | None
    address: str
    ports: Ports | None
    pass_env: tuple[str, ...]
    own_jobs: bool
    isolation: Kind | None = None
    """Isolation of jobs; None means the strongest kind that works on this host."""
    user_ids: UserIds = field(default_factory=UserIds)
    private: tuple[Path, ...] = ()
    """Folders that no job may read, if jobs share the agent's user."""
    environments_bytes: int = CACHE_BYTES
    """Size of all Python environments of jobs, above which those that no run uses are removed."""
    umask: int | None = None
    """Mask of the permissions of files that ranks create; None means that of the agent's own start."""
    metadata_url: str | None = None
    """URL of the metadata service that announces interruptions; None if there is none."""
    pilot: PilotLimits | None = None
    """Limits of the batch job of Slurm, or of the pod, that this agent is; None elsewhere."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Topology labels of this host by level."""
    share_gpus: bool = False
    """Offer GPUs that other agents of this host offer too."""
    metrics_listen: Bind | None = None
    """Address on which to serve `/metrics`; None disables it."""


def parse(argv: Sequence[str], env: Mapping[str, str]) -> Options:
    """Return the options from arguments and environment. Exit with code 2 on wrong usage."""
    parser = parser_of(env)
    args = parser.parse_args(argv)
    if not args.url:
        parser.error("--url (or HEADWAY_URL) is missing: pass the URL of the service")
    state_dir = (args.state_dir or _default_state(env) / args.name).expanduser().resolve()
    if not args.token and not StateFolder(state_dir).credentials.exists():
        parser.error(
            "--token (or HEADWAY_JOIN_TOKEN) is missing, and this agent has not joined before. An operator creates one with "
            "`headway join-token create`"
        )
    limits = _pilot(parser, env)
    return Options(
        url=args.url,
        token=args.token or "",
        name=args.name,
        state_dir=state_dir,
        slots=args.slots,
        device_kind=args.device_kind,
        address=args.address or own_address(args.url),
        ports=args.ports,
        pass_env=args.pass_env,
        own_jobs=args.own_jobs,
        isolation=args.isolation,
        user_ids=args.user_ids,
        private=_private(env),
        umask=args.umask,
        environments_bytes=args.environments_size,
        metadata_url=_metadata_url(parser, env),
        pilot=limits,
        labels=args.labels or ({} if limits is None else pilot.labels(env)),
        share_gpus=args.share_gpus,
        metrics_listen=args.metrics_listen,
    )


def _metadata_url(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> str | None:
    """Return the metadata URL from `HEADWAY_METADATA_URL`, or EC2's own for `HEADWAY_METADATA=ec2`."""
    url, provider = env.get("HEADWAY_METADATA_URL"), env.get("HEADWAY_METADATA")
    if url and urlsplit(url).scheme not in {"http", "https"}:
        parser.error(f"HEADWAY_METADATA_URL: {url!r} is not a URL; write it like {EC2_URL}")
    if provider not in {None, "", "ec2", *_PILOTS}:
        parser.error(
            f"HEADWAY_METADATA: {provider!r} is not supported; the supported values are ec2, slurm and kubernetes"
        )
    return url or (EC2_URL if provider == "ec2" else None)


def _pilot(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> PilotLimits | None:
    if env.get("HEADWAY_METADATA") not in _PILOTS:
        return None
    try:
        return pilot.pilot_limits(env)
    except HeadwayError as error:
        parser.error(str(error))


def parser_of(env: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser of the options; the reference page is generated from it."""
    parser = argparse.ArgumentParser(
        prog="headway agent",
        description="Offer the slots of this host to a Headway service.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--url", default=env.get("HEADWAY_URL"), help="URL of the service (default: $HEADWAY_URL)")
    add(
        "--token",
        default=env.get("HEADWAY_JOIN_TOKEN"),
        help="join token, required for the first join of an agent with this state folder (default: $HEADWAY_JOIN_TOKEN, which "
        "other users of the host cannot read)",
    )
    add(
        "--name",
        type=_name,
        default=_host_name(),
        help="unique name of this node (default: the host's name, %(default)s)",
    )
    add("--slots", type=_positive, metavar="N", help="slots to offer (default: one per GPU, else per core)")
    add(
        "--device-kind",
        type=_kind,
        metavar="KIND",
        help="a kind of GPU, or `cpu`; `cpu-NAME` for cores of another speed (default: any GPU, or `cpu` without GPUs)",
    )
    add(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="state folder of this agent alone, kept over restarts (default: ~/.local/state/headway/agents/NAME)",
    )
    add(
        "--share-gpus",
        action="store_true",
        default=env.get("HEADWAY_SHARE_GPUS", "") not in {"", "0"},
        help="for tests: offer GPUs that another agent of this host offers too (default: $HEADWAY_SHARE_GPUS, or refuse)",
    )
    _add_place(parser, env)
    add(
        "--pass-env",
        type=_names,
        default=(),
        metavar="NAME,...",
        help="environment variables of the agent to pass to ranks, such as AWS_PROFILE",
    )
    add(
        "--metrics-listen",
        type=_bind,
        default=env.get("HEADWAY_AGENT_METRICS_LISTEN") or None,
        metavar="[ADDRESS:]PORT",
        help="address on which to serve Prometheus metrics at /metrics; loopback if only a port is given (default: "
        "$HEADWAY_AGENT_METRICS_LISTEN, or disabled)",
    )
    _add_isolation(parser, env)
    _add_environments(parser, env)
    add("--own-jobs", action="store_true", help="stop the ranks, with a checkpoint, when the agent ends")
    return parser


def _add_place(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    add = parser.add_argument
    add("--address", help="address for other nodes (default: this host's, on its route to the service)")
    add(
        "--ports",
        type=_ports,
        metavar="FIRST-LAST",
        help="ports that jobs may use for their rendezvous (default: 64 free ports between 20000 and 31999)",
    )
    add(
        "--labels",
        type=_labels,
        default=env.get("HEADWAY_LABELS") or {},
        metavar="LEVEL=NAME,...",
        help="where this host is, such as rack=r7,zone=a; levels: nvlink (an NVLink domain of several hosts), rack (or leaf "
        "switch), zone (default: $HEADWAY_LABELS, or none)",
    )


def _add_isolation(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    add = parser.add_argument
    add(
        "--isolation",
        choices=KINDS,
        default=env.get("HEADWAY_ISOLATION") or None,
        help="isolation of jobs: `users` (a user for each job; requires root), `landlock` (by the kernel), `none` "
        "(default: $HEADWAY_ISOLATION, or the first of these that works on this host)",
    )
    add(
        "--user-ids",
        type=_user_ids,
        default=env.get("HEADWAY_USER_IDS") or UserIds(),
        metavar="FIRST-LAST",
        help="range of user ids for jobs, which nothing else on the host uses (default: $HEADWAY_USER_IDS, or "
        f"{UserIds().first}-{UserIds().last})",
    )
    add(
        "--umask",
        type=_umask,
        default=env.get("HEADWAY_UMASK") or None,
        metavar="OCTAL",
        help="permissions that files of ranks do not get, such as 027 (default: $HEADWAY_UMASK, or the umask that the agent is "
        "started with)",
    )


def _add_environments(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    parser.add_argument(
        "--environments-size",
        type=_size,
        default=env.get("HEADWAY_ENVIRONMENTS_SIZE") or CACHE_BYTES,
        metavar="SIZE",
        help="disk space for the Python environments of jobs, such as 20GiB; beyond it the least recently used ones that no run "
        "uses are removed (default: $HEADWAY_ENVIRONMENTS_SIZE, or 20GiB)",
    )


def _default_state(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_STATE_HOME") or "~/.local/state") / "headway" / "agents"


def _host_name() -> str:
    name = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower()).strip("-")[:63]
    return name or "node"


def _name(text: str) -> str:
    if not re.match(NAME_PATTERN, text):
        raise argparse.ArgumentTypeError(f"{text!r}: use lower-case letters, digits and hyphens, at most 63")
    return text


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _bind(text: str) -> Bind:
    try:
        return Bind.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _kind(text: str) -> str:
    if not _KIND.match(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a device kind; write it like cpu or a100")
    return text


def _user_ids(text: str) -> UserIds:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 1000 <= int(first) <= int(last) < 2**32 - 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of user ids; write it like 200000-265535")
    return UserIds(int(first), int(last))


def _umask(text: str) -> int:
    if not re.fullmatch("0?[0-7]{3}", text) or int(text, 8) & 0o700:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a umask that leaves the owner's rights; write it like 022 or 027"
        )
    return int(text, 8)


def _size(text: str) -> int:
    try:
        return int(str(parse_size_bytes(text)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _private(env: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folder with Headway's data of the user, such as tokens, and the folders in HEADWAY_PRIVATE."""
    named = [env.get("HEADWAY_HOME") or "~/.headway", *env.get("HEADWAY_PRIVATE", "").split(os.pathsep)]
    return tuple(Path(one).expanduser().resolve() for one in named if one)


def _ports(text: str) -> Ports:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 1024 <= int(first) <= int(last) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of ports; write it like 20000-20063")
    return Ports(int(first), int(last))


def _labels(text: str) -> dict[str, str]:
    try:
        return parse_labels(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)
