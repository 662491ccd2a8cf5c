"""TLS before servers that speak none, and certificates for it."""

from __future__ import annotations

import asyncio
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_POSTGRES_SSL_REQUEST = struct.pack("!II", 8, 80877103)


def issue(folder: Path, name: str, host: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    """A certificate for a host and its key, signed by itself."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", f"/CN={name}"]
    subprocess.run([*command, "-addext", f"subjectAltName={host}"], check=True, capture_output=True)
    return certificate, key


def context_of(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@asynccontextmanager
async def relay(context: ssl.SSLContext, behind: str | int, *, postgres: bool = False) -> AsyncIterator[int]:
    """A port of this machine that speaks TLS, and passes all on to a socket or port behind it that does not.

    Clients of PostgreSQL ask for TLS within their protocol; those who do not are sent away.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if postgres:
                if await reader.readexactly(8) != _POSTGRES_SSL_REQUEST:
                    return
                writer.write(b"S")
                await writer.start_tls(context)
            if isinstance(behind, str):
                onward = await asyncio.open_unix_connection(behind)
            else:
                onward = await asyncio.open_connection("127.0.0.1", behind)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass_on(reader, onward[1]))
                both.create_task(_pass_on(onward[0], writer))
        except (OSError, EOFError, ExceptionGroup):
            pass  # somebody has hung up, or does not trust us
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=None if postgres else context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()
