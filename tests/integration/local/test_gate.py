"""TLS on the network for a server on loopback."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headway.local.certificates import identity
from headway.local.gate import serve
from headway.local.ports import HOST
from headway.tls import trusted


@pytest.mark.parametrize("sent_bytes", [1, 1 << 20])
async def test_gate_passes_bytes_on_for_those_who_trust_its_certificate_only(
    tmp_path: Path, sent_bytes: int
) -> None:
    found = identity(tmp_path, HOST, datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(found.certificate, found.key)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(sent_bytes))
        await writer.drain()
        writer.close()

    async with (
        await asyncio.start_server(echo, HOST, 0) as inner,
        await serve(HOST, 0, inner.sockets[0].getsockname()[1], context) as gate,
    ):
        port = gate.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(HOST, port, ssl=trusted(str(found.certificate)))
        writer.write(b"x" * sent_bytes)
        assert await reader.readexactly(sent_bytes) == b"x" * sent_bytes
        writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection(HOST, port, ssl=trusted(None))
