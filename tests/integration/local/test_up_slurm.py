"""`headway up --provider slurm` on a real Slurm: pilots reach the service over the network, and `headway down` gives them back."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.engines.slurm_cluster import INSTALLED, MISSING, Slurm, slurm_cluster
from headway.client.client import Client
from headway.client.target import target
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from headway.local.ports import free_port
from headway.local.processes import read_pid_file
from tests.integration.local.footprint import processes_of, until
from tests.integration.local.test_up import HEADWAY, home

SECRET_FILES = (
    *("admin-token", "join-token", "secrets-key", "client.json"),
    *("redis/redis.json", "tls/key.pem", "logs/api.log", "rental.json"),
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def address() -> str:
    """An address of this machine that is not loopback."""
    for name in psutil.net_if_addrs().values():
        for one in name:
            if one.family is socket.AF_INET and not one.address.startswith("127."):
                return str(one.address)
    pytest.skip("THIS MACHINE HAS LOOPBACK ONLY: NOTHING REACHES IT BY A NETWORK")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    if not INSTALLED:
        pytest.skip(MISSING)
    with slurm_cluster(tmp_path / "slurm", nodes=2, kill_wait_s=30) as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        monkeypatch.setenv("HEADWAY_SLURM_PARTITIONS", "low=0.01")
        monkeypatch.setenv("HEADWAY_SLURM_LOG", str(cluster.folder / "pilot-%j.log"))
        setup = tmp_path / "setup.sh"
        setup.write_text("export HEADWAY_ISOLATION=none\n")  # as root, jobs would not reach this folder
        monkeypatch.setenv("HEADWAY_SLURM_SETUP", str(setup))
        monkeypatch.setenv("HEADWAY_SLURM_WAIT_S", "3")
        monkeypatch.setenv("HEADWAY_RENT_EVERY_S", "0.5")
        yield cluster


def headway(data: Path, *words: str) -> str:
    done = subprocess.run(
        [*HEADWAY, *words], env=home(data), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def up(data: Path, address: str, port: int) -> Client:
    flags = ("--data", str(data), "--port", str(port), "--provider", "slurm", "--address", address)
    headway(data, "up", *flags, "--detach")
    found = target(home(data))
    return Client(found.url, found.token, patience_s=30.0, ca_file=found.ca_file)


def address_of(port: int) -> set[str]:
    """Addresses at which a program listens on a port. Connections of others may have the same port on loopback."""
    return {
        one.laddr.ip
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port
    }


def submit(client: Client, work: Path) -> str:
    spec = {
        "name": "waiter",
        "run": f"python train.py {work}",
        "workdir": str(work),
        "market": "spot",
        "elastic": {"resize": "restart"},
        "checkpoint": {"grace_s": 5},
    }
    return client.submit(JobSpec.model_validate(spec)).id


def pilots(slurm: Slurm) -> list[str]:
    return slurm.command("squeue", "--noheader", "--format=%j").split()


def secrets_of(data: Path) -> list[str]:
    files = ("admin-token", "join-token", "secrets-key")
    password = re.findall(r'"password": "([^"]+)"', (data / "redis" / "redis.json").read_text())
    return [*((data / one).read_text().strip() for one in files), *password]


def test_pilots_run_a_job_and_are_given_back_by_down(
    data: Path, work: Path, slurm: Slurm, address: str
) -> None:
    port = free_port()
    with up(data, address, port) as client:
        job = submit(client, work)
        until((work / "started-1").exists, "the script to start on a pilot")
        (pilot,) = pilots(slurm)
        cluster = (data / "cluster-name").read_text(encoding="utf-8").strip()
        assert pilot.startswith(f"headway:{cluster}:"), "no other Headway of this user takes it for an orphan"
        assert client.url == f"https://{address}:{port}"
        assert address_of(port) == {address}
        shown = "\n".join(processes_of(data).values())
        assert not [one for one in secrets_of(data) if one in shown]
        readable = [name for name in SECRET_FILES if stat.S_IMODE((data / name).stat().st_mode) & 0o077]
        assert readable == []
        with pytest.raises(ssl.SSLCertVerificationError), socket.create_connection((address, port)) as plain:
            ssl.create_default_context().wrap_socket(plain, server_hostname=address)
        headway(data, "down", "--data", str(data))
    assert pilots(slurm) == []
    until(lambda: not processes_of(data), "everything to be gone")
    with up(data, address, port) as client:
        (first, *_) = sorted(client.machines(), key=lambda one: one.requested_at)
        assert (first.state, first.reason) == ("gone", "GIVEN_BACK")
        assert first.billed_to is not None
        until(lambda: len(list(work.glob("started-*"))) == 2, "the script to start again")
        (work / "finish").touch()
        *_, last = client.watch(job, every_s=0.1)
        assert last.state is JobState.SUCCEEDED, last.message
        headway(data, "down", "--data", str(data))
    assert pilots(slurm) == []


def test_pilots_of_a_killed_up_are_given_back_by_down_in_another_shell(
    data: Path, work: Path, slurm: Slurm, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    with up(data, address, port) as client:
        submit(client, work)
        until((work / "started-1").exists, "the script to start on a pilot")
    pid = read_pid_file(data / "up.pid")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: read_pid_file(data / "up.pid") is None, "the end of the killed process")
    assert len(pilots(slurm)) == 1
    settings = {name: os.environ[name] for name in os.environ if name.startswith("HEADWAY_SLURM_")}
    for name in settings:
        monkeypatch.delenv(name)  # the shell of `headway down` knows none of them
    said = headway(data, "down", "--data", str(data))
    assert "given back" in said
    assert pilots(slurm) == []
    until(lambda: not processes_of(data), "everything to be gone")
    assert "not running" in headway(data, "down", "--data", str(data))
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with up(data, address, port) as client:
        (first, *_) = sorted(client.machines(), key=lambda one: one.requested_at)
        assert (first.state, first.reason) == ("gone", "GIVEN_BACK")
        assert first.billed_to is not None
        headway(data, "down", "--data", str(data))
    assert pilots(slurm) == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--address", "10.0.0.1"), "add --provider"),
        (("--provider", "ec2"), "there is slurm"),
        (("--provider", "slurm", "--address", "here"), "does not appear to be"),
        (("--provider", "slurm", "--address", "198.51.100.7"), "no address of this machine"),
    ],
)
def test_address_or_provider_that_cannot_be_used_is_refused_at_once(
    data: Path, flags: tuple[str, ...], says: str
) -> None:
    done = subprocess.run(
        [*HEADWAY, "up", "--data", str(data), *flags],
        env={**os.environ, "COLUMNS": "200"} | home(data),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert says in " ".join(done.stderr.split())
