"""The page "Two hosts in ten minutes": its commands, on two hosts with addresses of the test's own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks.networking.forwarding import Forwarder
from benchmarks.networking.namespaces import Namespace, bridge, why_not
from tests.integration.agent.looking import end_all
from tools.pages import ROOT, blocks

PAGE = ROOT / "docs" / "guides" / "two-hosts.md"
PATIENCE_S = 120
_END = "block-ended-with"
_SCRIPT = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
both = torch.ones(1)
dist.all_reduce(both)
assert both.item() == 2
dist.destroy_process_group()
"""
_UNTIL = "until {0}; do sleep 0.2; done"


class Shell:
    """A shell on one host, which keeps its variables from block to block."""

    def __init__(self, host: Namespace, folder: Path, env: dict[str, str]) -> None:
        self._shell = subprocess.Popen(
            host.inside("bash"),
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, commands: str) -> tuple[int, str]:
        """Run commands, and return the exit status of the last one and what they printed."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{commands}\necho {_END} $?\n")
        self._shell.stdin.flush()
        printed = []
        for line in self._shell.stdout:
            if line.startswith(_END):
                return int(line.split()[1]), "".join(printed)
            printed.append(line)
        raise AssertionError(f"the shell ended: {''.join(printed)}")

    def end(self) -> None:
        os.killpg(self._shell.pid, signal.SIGTERM)
        self._shell.communicate(timeout=PATIENCE_S)


class Hosts:
    """Two namespaces behind a bridge, with the addresses that stand for those of the page."""

    def __init__(self, exits: ExitStack, folder: Path, database_url: str, redis_url: str) -> None:
        between = exits.enter_context(bridge())
        hosts = [between.add(name) for name in ("host-a", "host-b")]
        self.addresses = {host.name: host.address for host in hosts}
        binary = folder / "bin"
        binary.mkdir()
        for program, words in (("python", ""), ("headway", "-m headway.cli")):
            (binary / program).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            (binary / program).chmod(0o755)
        env = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")}
        env |= {
            "PATH": f"{binary}:{env['PATH']}",
            "PYTHONPATH": str(ROOT),
            "STORAGE_URL": f"file://{folder}/storage",
        }
        parts = urlsplit(redis_url)
        assert parts.port is not None
        server = Forwarder(between.address(1), parts.port)
        exits.callback(server.close)
        env["REDIS_URL"] = redis_url.replace(
            f"{parts.hostname}:{parts.port}", f"{between.address(1)}:{server.port}"
        )
        env["DATABASE_URL"] = database_url  # a socket in a folder, which namespaces share
        self.shells = {}
        for host in hosts:
            home = folder / host.name
            home.mkdir()
            exits.callback(end_all, home / "agents" / "headway" / "agents" / host.name)
            own = env | {"HOME": str(home), "XDG_STATE_HOME": str(home / "agents"), "HEADWAY_HOME": str(home)}
            self.shells[host.name] = Shell(host, home, own)
            exits.callback(self.shells[host.name].end)

    def follow(self, text: str) -> dict[str, str]:
        """Run a block on the hosts that its first line names, and return what it printed, by host."""
        where, _, commands = text.partition("\n")
        text = commands.replace("10.1.0.1:", f"{self.addresses['host-a']}:")
        printed = {}
        for name in self.shells if where == "# both hosts" else [where.removeprefix("# ")]:
            status, printed[name] = self.shells[name].run(
                text.replace("ADDRESS=10.1.0.1", f"ADDRESS={self.addresses[name]}")
            )
            assert status == 0, f"{text}\n{printed[name]}"
        return printed


@pytest.fixture
def hosts(tmp_path: Path, database_url: str, redis_url: str) -> Iterator[Hosts]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with ExitStack() as exits:
        yield Hosts(exits, tmp_path, database_url, redis_url)


@pytest.mark.slow
def test_the_commands_of_the_page_lead_to_a_job_on_two_hosts(hosts: Hosts, tmp_path: Path) -> None:
    shells = [one.text for one in blocks(PAGE) if one.language == "sh"]
    (job,) = [one.text for one in blocks(PAGE) if one.language == "yaml"]
    (tmp_path / "host-a" / "job.yaml").write_text(job)
    (tmp_path / "host-a" / "job").mkdir()
    (tmp_path / "host-a" / "job" / "train.py").write_text(_SCRIPT)
    address, certificate, service, agent, doctor, submit = shells
    for block in (address, certificate, service):
        hosts.follow(block)
    _, token = hosts.shells["host-a"].run("echo $HEADWAY_JOIN_TOKEN")
    hosts.shells["host-b"].run(f"HEADWAY_JOIN_TOKEN={token.strip()}")
    # The page says that an agent that does not know the authority names the variable to set.
    lacks = agent.replace("HEADWAY_CA_FILE=ca.crt ", "").replace("# both hosts", "# host-b")
    hosts.follow(lacks)
    found = hosts.shells["host-b"].run(_UNTIL.format("grep -q HEADWAY_CA_FILE agent.log") + "; kill %1; wait")
    assert found[0] == 0
    shutil.copy(tmp_path / "host-a" / "ca.crt", tmp_path / "host-b")
    hosts.follow(agent)
    here = hosts.shells["host-a"]
    here.run("export HEADWAY_TOKEN=$HEADWAY_API_TOKEN")
    here.run(_UNTIL.format("headway doctor --cluster | grep -q '^2 connections probed'"))
    printed = hosts.follow(doctor)["host-a"]
    assert all(one in printed for one in hosts.addresses.values())
    assert "2 connections probed" in printed
    hosts.follow(submit)
