"""Tables of `headway doctor`. All functions take values and return renderables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.cli.render.jobs import columns
from headway.contract.isolation import PROBE_KINDS, IsolationFacts, ProbeKind
from headway.contract.values.listing import some_of
from headway.contract.views.diagnosis import Check, Level
from headway.contract.views.hosts import HostsView, HostView, LinkView

_MOST_OPEN = 5
_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def checks_table(checks: Sequence[Check]) -> Table:
    """Return the findings, one a row: level, subject, and what to do."""
    table = Table.grid(padding=(0, 2))
    for check in checks:
        text = Text(" ".join(filter(None, (check.found, check.why, check.hint))))
        table.add_row(Text(check.level, style=_STYLES[check.level]), check.name, text)
    return table


def hosts_table(view: HostsView) -> RenderableType:
    """Return the hosts, the connections that fail or are slow, and the findings."""
    if not view.hosts:
        return Text("No hosts. To add one, run headway join-token create here and headway agent on the host.")
    parts: list[RenderableType] = [_hosts(view.hosts), Text(), _isolation(view.hosts)]
    if view.links:
        parts += [Text(), _links(view.links)]
    usual = f", median {1e3 * view.latency_s:.2f} ms" if view.latency_s is not None else ""
    usual += f", {8e-6 * view.bytes_per_s:,.0f} Mbit/s" if view.bytes_per_s is not None else ""
    parts += [Text(f"\n{view.links_probed} connections probed{usual}.\n"), checks_table(view.checks)]
    return Group(*parts)


def _hosts(hosts: Sequence[HostView]) -> Table:
    names = ("HOST", "STATE", "ADDRESS", "INTERFACE", ">MTU", ">CLOCK", ">SHM", ">FILES", ">LOCKED")
    table = columns(*names, fold=["DRIVER", "NCCL"])
    for host in hosts:
        table.add_row(
            host.name,
            host.state,
            host.address,
            host.interface or "-",
            str(host.mtu or "-"),
            "-" if host.clock_ahead_s is None else f"{host.clock_ahead_s:+.1f}s",
            "-" if host.shm_bytes is None else f"{host.shm_bytes >> 20} MiB",
            "any" if host.open_files is None else str(host.open_files),
            "any" if host.locked_memory_bytes is None else f"{host.locked_memory_bytes >> 10} KiB",
            host.driver or "-",
            host.nccl or "-",
        )
    return table


def _isolation(hosts: Sequence[HostView]) -> Table:
    """Return, for each host, how many attempts of a confined program each kind of isolation withstood."""
    table = columns("HOST", "ISOLATION", *(kind.upper() for kind in PROBE_KINDS), fold=["OPEN"])
    for host in hosts:
        facts = host.isolation
        table.add_row(
            host.name,
            "-" if facts is None else facts.mode,
            *(_withstood(facts, kind) for kind in PROBE_KINDS),
            "-" if facts is None else _open(facts),
        )
    return table


def _withstood(facts: IsolationFacts | None, kind: ProbeKind) -> str:
    """Return the share of the attempts that failed, such as `47/47`."""
    result = None if facts is None else facts.results.get(kind)
    return "-" if result is None else f"{result.probes - len(result.open)}/{result.probes}"


def _open(facts: IsolationFacts) -> str:
    found = [name for kind in PROBE_KINDS if kind in facts.results for name in facts.results[kind].open]
    return some_of(found, _MOST_OPEN) if found else "nothing"


def _links(links: Sequence[LinkView]) -> Table:
    table = columns("FROM", "TO", ">LATENCY", ">BANDWIDTH", fold=["PROBLEM"])
    for link in links:
        table.add_row(
            link.source,
            link.target,
            "-" if link.connect_s is None or link.failure else f"{1e3 * link.connect_s:.2f} ms",
            "-" if link.bytes_per_s is None or link.failure else f"{8e-6 * link.bytes_per_s:,.0f} Mbit/s",
            link.failure or link.slow,
        )
    return table
