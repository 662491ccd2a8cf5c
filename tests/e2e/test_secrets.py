"""A secret's value is nowhere but in the ranks of the job that names it, and in their own output on its host: looked for on the
whole machine while the job runs, and after it has crashed with the value in its hand.
"""

from __future__ import annotations

import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from headway.local.postgres import EmbeddedPostgres, find_binaries
from headway.local.stack import LocalStack, Stores
from tests.e2e.conftest import PATIENCE_S, Cluster, living_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = """
import os, threading
import headway
key = os.environ["API_KEY"]
run = headway.init()
print("key is", key, flush=True)
print("credentials", sorted(one for one in os.environ if "TOKEN" in one or one.endswith("_KEY")), flush=True)
run.report(**{"loss-of-" + key: 1.0})
while not os.path.exists(os.environ["FINISH"]):
    threading.Event().wait(0.05)
raise RuntimeError("cannot sign in with " + key)
"""


@pytest.fixture
def alone(tmp_path: Path, postgres: EmbeddedPostgres, redis_url: str) -> Iterator[tuple[Cluster, Stores]]:
    """A stack over stores that can be looked into."""
    stores = Stores(postgres.create_database("marked"), redis_url)
    data = tmp_path / "data"
    with (
        LocalStack(data, agents=1, slots=1, stores=stores) as stack,
        Client(stack.url, stack.token, patience_s=60) as client,
    ):
        yield Cluster(stack, client), stores


def processes_with(value: str) -> Iterator[tuple[int, str]]:
    """Ids of processes, and where the value is seen of them."""
    for process in Path("/proc").iterdir():
        for name in ("cmdline", "environ"):
            try:
                seen = value.encode() in (process / name).read_bytes()
            except OSError:
                continue
            if seen and process.name.isdigit():
                yield int(process.name), name


def files_with(folder: Path, value: str) -> list[str]:
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and value.encode() in _bytes(path)
    ]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone since it was listed, or for its owner alone
        return b""


def dump_of(database_url: str) -> str:
    """Every row of the database."""
    command = [find_binaries() / "pg_dump", "--inserts", "--data-only", database_url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout


def all_of(redis_url: str) -> bytes:
    """Every key of Redis with its value, as Redis stores it and as it is read."""
    with Redis.from_url(redis_url) as client:
        found = []
        for key in client.scan_iter():
            found += [key, client.dump(key) or b""]
            if client.type(key) == b"stream":
                found.append(repr(client.xrange(key)).encode())
    return b"\n".join(found)


def core_bytes_of(pid: int) -> str:
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (line,) = [one for one in limits if one.startswith("Max core file size")]
    return line.removeprefix("Max core file size").split()[1]


def set_secret(cluster: Cluster, value: str) -> None:
    env = {**os.environ, "HEADWAY_URL": cluster.stack.url, "HEADWAY_TOKEN": cluster.stack.token}
    command = [sys.executable, "-m", "headway.cli", "secret", "set", "marker"]
    done = subprocess.run(
        command, env=env, input=f"{value}\n", capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert value not in done.stdout + done.stderr


def test_a_value_is_nowhere_but_in_its_ranks(alone: tuple[Cluster, Stores], tmp_path: Path) -> None:
    cluster, stores = alone
    value = "marker-" + secrets.token_hex(16)
    data, token = cluster.stack.data, cluster.stack.token
    key = (data / "secrets-key").read_text().strip()
    set_secret(cluster, value)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    spec = {
        "name": "marked",
        "workdir": str(tmp_path / "code"),
        "run": "python train.py",
        "env": {"FINISH": str(tmp_path / "finish")},
        "secrets": {"API_KEY": "marker"},
        "retry": {"user_errors": 0},
    }
    job = cluster.client.submit(JobSpec.model_validate(spec))
    cluster.until(lambda: bool(cluster.client.job(job.id).progress.metrics), "its metrics")
    cluster.until(lambda: "credentials" in cluster.headway("logs", "marked").stdout, "its output")
    assert f"[0] key is {'*' * len(value)}\n" in cluster.headway("logs", "marked").stdout
    assert "credentials ['API_KEY']" in cluster.headway("logs", "marked").stdout

    ranks = set(living_ranks(data, job.id).values())
    assert {pid for pid, _ in processes_with(value)} <= ranks
    for hidden in (value, key, token):
        assert [where for _, where in processes_with(hidden) if where == "cmdline"] == []
    processes = [program.pid for program in cluster.stack.programs.values() if program.pid is not None]
    assert {core_bytes_of(pid) for pid in {*processes, *ranks}} == {"0"}

    (tmp_path / "finish").touch()
    cluster.until(lambda: cluster.client.job(job.id).state is JobState.FAILED, "its end")
    failed = cluster.client.job(job.id)
    assert f"cannot sign in with {'*' * len(value)}" in failed.message
    cluster.until(lambda: "RuntimeError" in cluster.headway("logs", "marked").stdout, "all of its output")

    for path in (
        "describe marked -o json",
        "events marked -o json",
        "logs marked",
        "explain marked",
        "secret ls -o json",
        "audit -o json",
        "jobs -o json",
    ):
        answer = cluster.headway(*path.split())
        assert value not in answer.stdout + answer.stderr, path
    for hidden in (value, key, token):
        assert hidden not in dump_of(str(stores.database_url))
        assert hidden.encode() not in all_of(str(stores.redis_url))
    # Only the rank's own output has the value, and only files for this user alone have the key and the token.
    own = [one for one in files_with(data, value) if not one.startswith("agents/")]
    assert own == []
    assert {Path(one).name for one in files_with(data, value)} <= {"rank-0.log", "rank-0.jsonl"}
    for hidden in (key, token):
        for one in files_with(data, hidden):
            assert stat.S_IMODE((data / one).stat().st_mode) == 0o600, one
            assert not one.startswith(("logs/", "postgres/", "redis/", "storage/")), one
