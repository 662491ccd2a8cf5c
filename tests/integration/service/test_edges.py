"""The service's answers to browsers, and its limits on requests: headers, bodies, certificates."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import structlog
from fastapi import FastAPI, Request

from headway.errors import HeadwayError
from headway.tls import trusted
from service.api.http.server import HEAD_BYTES, BoundedProtocol, Certificate, server_of
from service.http_settings import HttpSettings
from tests.integration.service.conftest import TOKEN, Harness, harness_of, make_settings
from tests.tls import issue
from tests.waiting import until

BEARER = {"Authorization": f"Bearer {TOKEN}"}


async def test_every_answer_tells_browsers_what_to_do_with_it(harness: Harness) -> None:
    for path, status in (("/api/v1/jobs", 200), ("/nothing", 404), ("/livez", 200), ("/auth/login", 200)):
        answer = await harness.client.get(path)
        assert answer.status_code == status
        headers = answer.headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "camera=()" in headers["permissions-policy"]
        assert headers["cache-control"] == "no-store"  # the client shows its token everywhere
        assert "strict-transport-security" not in headers
        assert "server" not in headers
    data = (await harness.client.get("/api/v1/jobs")).headers["content-security-policy"]
    assert data.startswith("default-src 'none'")
    assert "script-src" not in data


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
async def test_the_documentation_runs_its_own_scripts_and_no_others(harness: Harness, path: str) -> None:
    answer = await harness.client.get(path)
    policy = answer.headers["content-security-policy"]
    inline = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    for script in inline:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    scripts = policy.split("script-src")[1].split(";")[0]
    assert scripts.count("sha256-") == len(inline)
    assert "unsafe" not in scripts
    assert len(answer.content) == int(answer.headers["content-length"])


async def test_with_tls_browsers_are_told_to_stay_there(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    settings = make_settings(
        database_url, redis_url, f"file://{tmp_path}/s", http=HttpSettings(public_url="https://headway.test")
    )
    async with harness_of(settings) as harness:
        answer = await harness.client.get("/livez")
    assert answer.headers["strict-transport-security"].startswith("max-age=31536000")


async def test_bad_bodies_are_answered_and_not_with_an_error_of_ours(harness: Harness) -> None:
    deep = b"[" * 200_000 + b"]" * 200_000
    nested = b'{"name":' * 50_000
    for body in (deep, nested, b'{"a":' + b"9" * 500_000 + b"}", b"\xff\xfe", b"{" * 1_000_000):
        answer = await harness.client.post(
            "/api/v1/jobs", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in {400, 422}, (body[:20], answer.status_code)
        assert len(answer.content) < 100_000
    huge = json.dumps({"name": "x" * (1 << 20)}).encode()
    answer = await harness.client.post("/api/v1/jobs", content=huge)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@asynccontextmanager
async def listening(
    settings: HttpSettings, protocol: type[BoundedProtocol] = BoundedProtocol
) -> AsyncIterator[tuple[int, Certificate]]:
    """A server with one route, on a free port; and what keeps its certificate fresh."""
    app = FastAPI()

    @app.post("/")
    async def say(request: Request) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    server, certificate = server_of(app, settings, host="127.0.0.1", port=0)
    assert server.config.http_protocol_class is BoundedProtocol
    server.config.http_protocol_class = protocol
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1], certificate
    finally:
        server.should_exit = True
        await serving


async def said(port: int, *pieces: bytes) -> bytes:
    """Return the server's bytes until it hangs up. Pieces are sent in turn, as long as it listens."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for one in pieces:
            writer.write(one)
            await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b"hung up"
    finally:
        writer.close()


HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"


async def test_a_head_has_a_limit_in_one_piece_and_in_many() -> None:
    async with listening(HttpSettings()) as (port, _):
        fits = await said(port, HEAD + b"A: " + b"a" * (HEAD_BYTES // 2) + b"\r\nContent-Length: 2\r\n\r\nhi")
        assert fits.startswith(b"HTTP/1.1 200")
        assert b"\r\nserver:" not in fits
        assert fits.endswith(b'{"bytes":2}')
        many = b"".join(b"A%d: b\r\n" % number for number in range(HEAD_BYTES // 8))
        for head in (b"A: " + b"a" * HEAD_BYTES + b"\r\n", many):
            assert (await said(port, HEAD + head + b"\r\n")).startswith(b"HTTP/1.1 431")
        long_path = await said(port, b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\nHost: h\r\n\r\n")
        assert long_path.startswith(b"HTTP/1.1 431")
        endless = await said(port, HEAD + b"A: ", *[b"a" * 65_536] * 40)
        assert endless.startswith(b"HTTP/1.1 431") or endless == b"hung up"
        assert (await said(port, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400")


async def test_a_body_may_be_larger_than_a_head() -> None:
    async with listening(HttpSettings()) as (port, _), httpx.AsyncClient() as client:
        for size in (0, HEAD_BYTES * 3, 0):  # over one connection
            answer = await client.post(f"http://127.0.0.1:{port}/", content=bytes(size))
            assert answer.json() == {"bytes": size}


class Impatient(BoundedProtocol):
    head_s = 0.2
    body_pause_s = 0.2


async def test_who_is_slow_is_cut_off() -> None:
    async with listening(HttpSettings(), Impatient) as (port, _):
        for begun in (b"", b"POST / HT", HEAD, HEAD + b"Content-Length: 3\r\n\r\nhi"):
            assert await asyncio.wait_for(said(port, begun), 60) in {b"", b"hung up"}


class InAHurry(BoundedProtocol):
    body_s = 0.2


async def test_a_body_that_drips_has_an_end() -> None:
    async with listening(HttpSettings(), InAHurry) as (port, _):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"Content-Length: 1000000\r\n\r\n")
        with pytest.raises(ConnectionError):  # long before it is whole, however steadily it comes
            await asyncio.wait_for(drip(writer), 60)
        writer.close()


async def drip(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.01)


async def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    certificate, key = issue(tmp_path, "first")
    first = certificate.read_bytes()
    settings = HttpSettings(tls_cert=certificate, tls_key=key)
    async with listening(settings) as (port, fresh):

        async def post(ca: Path) -> int:
            async with httpx.AsyncClient(verify=trusted(str(ca))) as client:
                return (await client.post(f"https://127.0.0.1:{port}/")).status_code

        old = tmp_path / "old.crt"
        old.write_bytes(first)
        assert await post(old) == 200
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            async with httpx.AsyncClient() as stranger:
                await stranger.post(f"https://127.0.0.1:{port}/")
        other, other_key = issue(tmp_path, "second")
        certificate.write_bytes(other.read_bytes())  # half of a renewal: the key does not fit yet
        with structlog.testing.capture_logs() as logs:
            await fresh.renew()
        assert [one["event"] for one in logs] == ["certificate_unusable"]
        assert await post(old) == 200
        key.write_bytes(other_key.read_bytes())
        await fresh.renew()
        assert await post(other) == 200
        with pytest.raises(httpx.ConnectError):
            await post(old)


async def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    certificate, key = issue(tmp_path, "first")
    async with listening(HttpSettings(tls_cert=certificate, tls_key=key)) as (port, _):
        context = trusted(str(certificate))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.2"
        writer.close()


async def test_bad_certificates_are_named(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nonsense")
    with pytest.raises(HeadwayError, match=r"wrong\.pem"):
        trusted(str(wrong))
    with pytest.raises(HeadwayError, match=r"missing\.pem"):
        trusted(str(tmp_path / "missing.pem"))
    with pytest.raises(ValueError, match="HEADWAY_TLS_CERT"):
        server_of(FastAPI(), HttpSettings(tls_cert=wrong, tls_key=wrong), host="127.0.0.1", port=0)
