"""The embedded servers: started, stopped, killed, moved, in the way of others."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
import redis as redis_client
from redis.backoff import NoBackoff
from redis.retry import Retry

from headway.local.postgres import EmbeddedPostgres, find_binaries
from headway.local.processes import LocalError, birth, end, read_pid_file, write_pid_file
from headway.local.redis import EmbeddedRedis


async def execute(url: str, statement: str) -> list[tuple[object, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()


def kill(pid: int | None) -> None:
    assert pid is not None
    assert end(pid, (signal.SIGKILL,), 10.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path / "pg", durable=False) as running:
        yield running


async def test_data_survives_a_restart(server: EmbeddedPostgres):
    await execute(server.url(), "CREATE TABLE kept AS SELECT 7 AS n")
    server.stop()
    assert not server.alive()
    assert await execute(server.start(), "SELECT n FROM kept") == [(7,)]


@pytest.mark.slow
async def test_a_killed_server_recovers(tmp_path: Path):
    with EmbeddedPostgres(tmp_path) as first:
        await execute(first.url(), "CREATE TABLE kept AS SELECT 7 AS n")
        kill(first.pid)
        with EmbeddedPostgres(tmp_path) as second:
            assert await execute(second.url(), "SELECT n FROM kept") == [(7,)]


async def test_a_server_left_over_is_replaced(server: EmbeddedPostgres):
    await execute(server.url(), "CREATE TABLE kept AS SELECT 7 AS n")
    with EmbeddedPostgres(server.data, durable=False) as second:
        assert not server.alive()
        assert await execute(second.url(), "SELECT n FROM kept") == [(7,)]


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with a database."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        assert process.poll() is None
        process.communicate(b"\n")


async def test_a_pid_file_that_names_a_stranger_is_no_obstacle(
    server: EmbeddedPostgres, stranger: subprocess.Popen[bytes]
):
    kill(server.pid)
    pid_file = server.data / "cluster" / "postmaster.pid"
    rest = pid_file.read_text().split("\n")[1:]
    pid_file.write_text("\n".join([str(stranger.pid), *rest]))
    assert await execute(server.start(), "SELECT 1") == [(1,)]


async def test_a_long_path_does_not_break_the_socket(tmp_path: Path):
    with EmbeddedPostgres(tmp_path / ("long" * 25), durable=False) as server:
        assert await execute(server.url(), "SELECT 1") == [(1,)]


def test_no_network_port_is_opened_and_strangers_are_kept_out(server: EmbeddedPostgres):
    assert (server.data / "run").stat().st_mode & 0o077 == 0
    inodes = {str(fd.readlink()) for fd in Path(f"/proc/{server.pid}/fd").iterdir()}
    listening = [line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert not {f"socket:[{inode}]" for inode in listening} & inodes


async def test_databases_are_made_from_templates(server: EmbeddedPostgres):
    await execute(server.create_database("template_of_ours"), "CREATE TABLE t AS SELECT 1 AS n")
    copy = server.create_database("copy", template="template_of_ours")
    assert await execute(copy, "SELECT n FROM t") == [(1,)]
    with pytest.raises(LocalError, match='database "copy" already exists'):
        server.create_database("copy")
    with pytest.raises(LocalError, match="no database name"):
        server.create_database("x; drop")


def test_data_of_another_version_is_refused(server: EmbeddedPostgres):
    server.stop()
    (server.data / "cluster" / "PG_VERSION").write_text("9\n")
    with pytest.raises(LocalError, match="written by PostgreSQL 9"):
        server.start()
    with pytest.raises(LocalError, match="Install PostgreSQL 9"):
        find_binaries("9")


def test_a_server_that_cannot_start_says_why(server: EmbeddedPostgres):
    server.stop()
    (server.data / "cluster" / "postgresql.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(LocalError, match="no_such_setting"):
        server.start()


def test_redis_keeps_its_url_and_is_closed_to_strangers(tmp_path: Path):
    first = EmbeddedRedis(tmp_path)
    url = first.start()
    with first, redis_client.Redis.from_url(url) as client:
        assert client.ping()
        port = client.connection_pool.connection_kwargs["port"]
        with (
            redis_client.Redis(port=port, retry=Retry(NoBackoff(), 0)) as stranger,
            pytest.raises(redis_client.AuthenticationError),
        ):
            stranger.ping()
        command_line = Path(f"/proc/{first.pid}/cmdline").read_text()
        assert client.connection_pool.connection_kwargs["password"] not in command_line
    with EmbeddedRedis(tmp_path) as second:
        assert second.url() == url


def test_a_killed_redis_starts_again_at_the_same_url(tmp_path: Path):
    with EmbeddedRedis(tmp_path) as server:
        url = server.url()
        kill(server.pid)
        assert not server.alive()
        assert server.start() == url


def test_a_redis_left_over_is_replaced(tmp_path: Path):
    with EmbeddedRedis(tmp_path) as first, EmbeddedRedis(tmp_path) as second:
        assert not first.alive()
        assert second.url() == first.url()


def test_a_port_taken_by_a_stranger_is_given_up(tmp_path: Path):
    with EmbeddedRedis(tmp_path) as first:
        before = first.url()
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", int(before.rpartition(":")[2].partition("/")[0])))
        stranger.listen()
        with EmbeddedRedis(tmp_path) as second, redis_client.Redis.from_url(second.url()) as client:
            assert second.url() != before
            assert client.ping()
        with pytest.raises(LocalError, match=r"(?i)address already in use"):
            first.start()


def test_a_pid_file_finds_its_process_and_no_other(tmp_path: Path):
    file = tmp_path / "child.pid"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write_pid_file(file, child.pid)
    assert read_pid_file(file) == child.pid
    child.communicate(b"\n")
    assert birth(child.pid) is None
    assert read_pid_file(file) is None
    file.write_text(f'{{"pid": {os.getpid()}, "birth": "before/1"}}')
    assert read_pid_file(file) is None
    file.write_text("{")
    assert read_pid_file(file) is None
