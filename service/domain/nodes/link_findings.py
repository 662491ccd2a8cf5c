"""Findings about the connections between hosts, for `headway doctor --cluster`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median

from headway.contract.views.diagnosis import Check, Level
from headway.contract.views.hosts import HostView, LinkView

SLOW_SHARE = 0.25
"""Share of the median bandwidth below which a connection counts as slow."""
FAR_SHARE = 10.0
"""Multiple of the median latency from which a connection counts as slow."""
FAR_S = 0.02
"""Latency in seconds below which no connection counts as slow, whatever the median."""
LEAST_COMPARED = 4
"""Number of measured connections from which their median is a yardstick."""
CLOCK_LIMIT_S = 5.0
LEAST_OPEN_FILES = 4096
LEAST_SHM_BYTES = 1 << 30
_NAMED = 5
_LINK_HINT = "Compare link speed and errors of the interface on both hosts: ethtool, ip -s link."


def medians_of(links: Sequence[LinkView]) -> tuple[float | None, float | None]:
    """Return the median latency in seconds and bandwidth in bytes per second; None with too few measurements."""
    latencies = [link.connect_s for link in links if link.connect_s is not None]
    rates = [link.bytes_per_s for link in links if link.bytes_per_s]
    return (
        median(latencies) if len(latencies) >= LEAST_COMPARED else None,
        median(rates) if len(rates) >= LEAST_COMPARED else None,
    )


def slowness_of(link: LinkView, latency_s: float | None, bytes_per_s: float | None) -> str:
    """Return why a connection counts as slow beside the medians; empty if it does not."""
    if bytes_per_s is not None and link.bytes_per_s and link.bytes_per_s < SLOW_SHARE * bytes_per_s:
        return f"{8e-6 * link.bytes_per_s:,.0f} Mbit/s, the median is {8e-6 * bytes_per_s:,.0f}"
    far_s = max(FAR_S, FAR_SHARE * latency_s) if latency_s is not None else None
    if far_s is not None and link.connect_s is not None and link.connect_s > far_s:
        return f"{1e3 * link.connect_s:.1f} ms, the median is {1e3 * (latency_s or 0):.1f}"
    return ""


def cut_off_text(host: HostView) -> str:
    """Return what is wrong with a host that no other reaches, and what to do."""
    elsewhere = host.source_address and host.source_address != host.address
    nat = f"; its requests come from {host.source_address}, so it is probably behind NAT" if elsewhere else ""
    return (
        f"no other host can connect to {host.name} at {host.address}{nat}. It gets jobs of one node only. Start its agent with "
        f"--address ADDRESS, at which the others reach it, or open its ports (--ports) to them"
    )


def checks_of(hosts: Sequence[HostView], links: Sequence[LinkView], alone: Iterable[str]) -> list[Check]:
    """Return the findings about hosts and connections; a single OK if there is nothing to say.

    `alone` are the ids of hosts that no other reaches, `links` all that were probed.
    """
    cut_off = set(alone)
    checks = [
        Check(name="connections", level=Level.FAIL, found=f"{cut_off_text(host)}.")
        for host in hosts
        if host.node_id in cut_off
    ]
    slow = [host for host in hosts if host.slow_link]
    checks += [
        Check(
            name="bandwidth",
            level=Level.WARN,
            found=f"{host.slow_link}.",
            why="Every step of a job waits for its slowest connection. Jobs of several nodes get this host last.",
            hint=_LINK_HINT,
        )
        for host in slow
    ]
    told = cut_off | {host.node_id for host in slow}
    checks += _pair_checks(
        [one for one in links if one.failure or not {one.source_id, one.target_id} & told], cut_off
    )
    checks += [check for host in hosts for check in _host_checks(host)]
    checks += _version_checks(hosts)
    if not checks:
        reached = sum(not link.failure for link in links)
        checks = [
            Check(
                name="connections",
                level=Level.OK,
                found=f"{reached} of {len(links)} probed connections work.",
            )
        ]
    return checks


def _pair_checks(links: Sequence[LinkView], cut_off: Collection[str]) -> list[Check]:
    failed = {
        (one.source_id, one.target_id): one
        for one in links
        if one.failure and not {one.source_id, one.target_id} & set(cut_off)
    }
    checks = []
    for (source, target), link in failed.items():
        back = next((one for one in links if (one.source_id, one.target_id) == (target, source)), None)
        one_way = "; the other direction works" if back is not None and not back.failure else ""
        checks.append(
            Check(
                name="connections",
                level=Level.FAIL,
                found=f"{link.failure}{one_way}.",
                why="No job is placed on both hosts.",
                hint="Open the ports of --ports between them, or give the agent an --address that the others reach.",
            )
        )
    latency_s, bytes_per_s = medians_of(links)
    slow: dict[str, list[str]] = defaultdict(list)
    for link in links:
        if not link.failure and (why := slowness_of(link, latency_s, bytes_per_s)):
            slow[link.source].append(f"{link.source} from {link.target}: {why}")
    checks += [
        Check(
            name="bandwidth",
            level=Level.WARN,
            found="; ".join(texts[:_NAMED])
            + (f"; {len(texts) - _NAMED} more" if len(texts) > _NAMED else "")
            + ".",
            why="Every step of a job waits for its slowest connection.",
            hint=_LINK_HINT,
        )
        for texts in slow.values()
    ]
    return checks


def _host_checks(host: HostView) -> Iterable[Check]:
    if host.clock_ahead_s is not None and abs(host.clock_ahead_s) > CLOCK_LIMIT_S:
        yield Check(
            name="clock",
            level=Level.WARN,
            found=f"The clock of {host.name} is {abs(host.clock_ahead_s):.0f} s "
            f"{'ahead of' if host.clock_ahead_s > 0 else 'behind'} the service's.",
            why="Object stores refuse signatures of another time, and logs cannot be compared.",
            hint="Let it follow a time server: timedatectl set-ntp true",
        )
    if host.open_files is not None and host.open_files < LEAST_OPEN_FILES:
        yield Check(
            name="limits",
            level=Level.WARN,
            found=f"{host.name} allows {host.open_files} open files.",
            why="Data loaders and collectives need a few per rank and peer.",
            hint="Set LimitNOFILE=65536 in the agent's unit, or ulimit -n.",
        )
    if host.shm_bytes is not None and host.shm_bytes < LEAST_SHM_BYTES:
        yield Check(
            name="limits",
            level=Level.WARN,
            found=f"Shared memory (/dev/shm) of {host.name} has {host.shm_bytes >> 20} MiB.",
            why="Data loaders pass batches through it, and NCCL its buffers.",
            hint="Mount it larger, in a container with --shm-size.",
        )


def _version_checks(hosts: Sequence[HostView]) -> Iterable[Check]:
    """Yield a warning for each fact in which hosts differ that must be equal to train together."""
    facts: Mapping[str, list[tuple[str, str]]] = {
        "MTU": [(host.name, str(host.mtu)) for host in hosts if host.mtu and host.interface != "lo"],
        "NCCL": [(host.name, host.nccl) for host in hosts if host.nccl and host.driver],
    }
    for what, values in facts.items():
        by_value: dict[str, list[str]] = defaultdict(list)
        for name, value in values:
            by_value[value].append(name)
        if len(by_value) > 1:
            shown = "; ".join(
                f"{value} on {', '.join(names[:_NAMED])}" for value, names in sorted(by_value.items())
            )
            yield Check(
                name=what.lower(),
                level=Level.WARN,
                found=f"Hosts differ in {what}: {shown}.",
                why="Ranks of one job may then hang or fail when they meet.",
                hint=f"Use the same {what} on all hosts.",
            )
