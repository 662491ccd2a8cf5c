"""Postgres and Redis by TLS: who is not who its certificate says is not spoken to."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio
import redis as redis_client

from headway.local.redis import EmbeddedRedis
from service.adapters.postgres.database import sqlalchemy_url
from service.adapters.postgres.engine.leadership import PostgresLeadership
from service.http_settings import HttpSettings, read_http_settings
from service.main import Service
from service.settings import SettingsError
from tests.integration.service.conftest import make_settings
from tests.tls import context_of, issue, relay

DOCS = Path(__file__).parents[3] / "docs/tls.md"


@dataclass
class Stores:
    """Where Postgres and Redis are reached by TLS, and the certificate that both show."""

    database_url: str
    redis_url: str
    certificate: Path
    storage: str

    def service(self, ca_file: Path | None) -> Service:
        http = HttpSettings(ca_file=ca_file)
        return Service(make_settings(self.database_url, self.redis_url, self.storage, http=http))


@pytest_asyncio.fixture
async def stores(
    database_url: str,
    redis: EmbeddedRedis,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Stores]:
    monkeypatch.setenv("PGSSLROOTCERT", "")  # the service sets it for its process: undone at the end
    certificate, key = issue(tmp_path, "stores")
    context = context_of(certificate, key)
    parts = urlsplit(database_url)
    folder = parse_qs(parts.query)["host"][0]
    there = urlsplit(redis_url)
    assert there.port is not None, redis_url
    async with (
        relay(context, f"{folder}/.s.PGSQL.5432", postgres=True) as database_port,
        relay(context, there.port) as redis_port,
    ):
        user = f"{parts.username}@" if parts.username else ""
        secret = f":{there.password}@" if there.password else ""
        yield Stores(
            database_url=f"postgresql://{user}127.0.0.1:{database_port}{parts.path}?sslmode=verify-full",
            redis_url=f"rediss://{secret}127.0.0.1:{redis_port}{there.path}",
            certificate=certificate,
            storage=f"file://{tmp_path}/storage",
        )


async def test_stores_are_reached_by_tls_once_their_authority_is_trusted(stores: Stores) -> None:
    service = stores.service(stores.certificate)
    try:
        await service.check()
        async with service.database.begin() as tx:
            assert await tx.nodes.device_kinds() == set()
        leadership = PostgresLeadership(stores.database_url, "test")
        assert await leadership.acquire() is not None
        await leadership.resign()
    finally:
        await service.close()
    # PostgreSQL is behind the relay and sees a plain connection: only the way to the relay is encrypted here.


async def test_stores_whose_authority_is_not_trusted_are_not_spoken_to(
    stores: Stores, tmp_path: Path
) -> None:
    other, _ = issue(tmp_path, "other")
    service = stores.service(other)
    try:
        problems = await service.problems()
    finally:
        await service.close()
    assert len(problems) == 2
    assert all("does not answer" in one for one in problems), problems


async def test_a_good_certificate_of_another_host_is_no_good(
    stores: Stores, redis_url: str, database_url: str, tmp_path: Path
) -> None:
    certificate, key = issue(tmp_path, "elsewhere", "DNS:elsewhere.example")
    port = urlsplit(redis_url).port
    assert port is not None
    folder = parse_qs(urlsplit(database_url).query)["host"][0]
    context = context_of(certificate, key)
    async with (
        relay(context, port) as redis_port,
        relay(context, f"{folder}/.s.PGSQL.5432", postgres=True) as database_port,
    ):
        stores.redis_url = stores.redis_url.replace(str(urlsplit(stores.redis_url).port), str(redis_port))
        stores.database_url = stores.database_url.replace(
            str(urlsplit(stores.database_url).port), str(database_port)
        )
        service = stores.service(certificate)
        try:
            assert len(await service.problems()) == 2
        finally:
            await service.close()


def test_urls_of_libpq_are_understood() -> None:
    assert sqlalchemy_url("postgres://u:p@h:1/d?sslmode=verify-full&application_name=x") == (
        "postgresql+asyncpg://u:p@h:1/d?ssl=verify-full&application_name=x"
    )
    with pytest.raises(ValueError, match="HEADWAY_CA_FILE"):
        sqlalchemy_url("postgresql://h/d?sslmode=verify-full&sslrootcert=/ca.pem")


def test_settings_of_tls_go_together_and_name_files(tmp_path: Path) -> None:
    certificate, key = issue(tmp_path, "api")
    read = read_http_settings({"HEADWAY_TLS_CERT": str(certificate), "HEADWAY_TLS_KEY": str(key)})
    assert read.secure
    assert read.public_url == "https://127.0.0.1:8123"
    with pytest.raises(SettingsError, match="go together"):
        read_http_settings({"HEADWAY_TLS_CERT": str(certificate)})
    with pytest.raises(SettingsError, match="HEADWAY_CA_FILE"):
        read_http_settings({"HEADWAY_CA_FILE": str(tmp_path / "missing")})


def test_the_commands_of_the_documentation_make_certificates_that_work(tmp_path: Path) -> None:
    """The commands of docs/tls.md run as they are written."""
    blocks = re.findall(r"```bash\n(# certificates.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(blocks) == 1
    subprocess.run(["bash", "-euc", blocks[0]], cwd=tmp_path, check=True, capture_output=True)
    for name, host in (
        ("api", "headway.example.com"),
        ("postgres", "postgres.example.com"),
        ("redis", "redis.example.com"),
    ):
        check = ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", host, f"{name}.crt"]
        subprocess.run(check, cwd=tmp_path, check=True, capture_output=True)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            tmp_path / f"{name}.crt", tmp_path / f"{name}.key"
        )
        assert (tmp_path / f"{name}.key").stat().st_mode & 0o077 == 0
    assert redis_client.Redis.from_url("rediss://h", ssl_ca_certs=str(tmp_path / "ca.crt")) is not None
