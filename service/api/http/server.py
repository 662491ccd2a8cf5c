"""HTTP server, with TLS if there is a certificate, and with time limits for slow clients."""

from __future__ import annotations

import asyncio
import math
import ssl
from pathlib import Path
from typing import Any, ClassVar, Final

import structlog
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.http_settings import HttpSettings

log = structlog.get_logger()

KEEP_ALIVE_S: Final = 60
"""Idle time before a connection closes.

It exceeds the report interval, so that agents keep their connections.
"""
HEAD_BYTES: Final = 32 << 10
"""Largest size of a request's line and headers together."""
HEAD_S: Final = 20.0
"""Longest time in seconds from the connection, or the first byte of a request, to the end of its headers."""
BODY_PAUSE_S: Final = 20.0
"""Longest pause in seconds within a body. After that the client counts as gone."""
BODY_S: Final = 60.0
"""Longest time in seconds for the body of a request, except an upload of a bundle."""
CERTIFICATE_LOOKED_AT_EVERY_S: Final = 10.0
BUNDLES: Final = "/api/v1/bundles"
_TOO_LARGE: Final = "The headers of this request are too large."


class BoundedProtocol(HttpToolsProtocol):
    """HTTP protocol that refuses large headers and disconnects slow clients.

    Without limits, one client could fill the memory with one header, or hold any number of connections with
    one byte each.
    """

    head_s: ClassVar[float] = HEAD_S
    body_pause_s: ClassVar[float] = BODY_PAUSE_S
    body_s: ClassVar[float] = BODY_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = True
        self._in_body = False
        self._too_large = False
        self._until_s = math.inf
        """Deadline of the body, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of a new connection."""
        super().connection_made(transport)
        self._wait_for_more(self.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit of a closed connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received bytes, which can contain parts of several requests."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_body:
            self._wait_for_more(min(self.body_pause_s, self._until_s - self.loop.time()))
        elif self._in_head and self._head_bytes > HEAD_BYTES:
            # `on_headers_complete` has checked a complete head. The same bytes can contain a body behind it.
            self._too_large = True
            self.send_400_response(_TOO_LARGE)

    def on_message_begin(self) -> None:
        """Start the limits of a new request's head."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        if self._timer is None:
            self._wait_for_more(self.head_s)

    def on_headers_complete(self) -> None:
        """Check the size of the complete head. A callback raises to stop the parser."""
        self._in_head = False
        self._stop_waiting()
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_BYTES:
            self._too_large = True
            raise ValueError(_TOO_LARGE)
        super().on_headers_complete()
        self._in_body = True
        endless = self.scope["path"].startswith(BUNDLES)
        self._until_s = math.inf if endless else self.loop.time() + self.body_s

    def on_message_complete(self) -> None:
        """Stop the time limit of a complete request."""
        self._in_body = False
        self._stop_waiting()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer an unreadable or too large request, and close the connection."""
        if not self._too_large:
            super().send_400_response(msg)
            return
        body = _TOO_LARGE.encode()
        self.transport.write(
            STATUS_LINE[431]
            + b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            + b"content-length: %d\r\n\r\n" % len(body)
            + body
        )
        self.transport.close()

    def _wait_for_more(self, within_s: float) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(max(0.0, within_s), self._too_slow)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self._in_body and self.flow.read_paused:
            self._wait_for_more(self.body_pause_s)  # the application does not read at present
        else:
            self.transport.close()


def server_of(
    app: FastAPI, settings: HttpSettings, *, host: str, port: int
) -> tuple[uvicorn.Server, Certificate]:
    """Return the server of the application, and the renewal of its certificate.

    Raises:
        ValueError: the certificate or its key cannot be used.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=BoundedProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # HEADWAY_TRUSTED_PROXIES decides instead
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=3,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"HEADWAY_TLS_CERT and HEADWAY_TLS_KEY cannot be used: {error}") from error
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return uvicorn.Server(config), Certificate(config.ssl, settings.tls_cert, settings.tls_key)


class Certificate:
    """Files of a certificate, which are read again when they have changed, without a restart.

    Args:
        context: TLS context of new connections; None without TLS, when nothing is renewed.
        certificate: file of the certificate with its intermediate certificates.
        key: file of its private key.
    """

    def __init__(self, context: ssl.SSLContext | None, certificate: Path | None, key: Path | None) -> None:
        self._context = context
        self._files = tuple(file for file in (certificate, key) if file is not None)
        self._loaded = self._versions()

    async def renew(self) -> None:
        """Load the files if they have changed.

        A certificate that does not fit its key may be half written, so it is left for the next call.
        """
        found = self._versions()
        if self._context is None or found == self._loaded or None in found:
            return
        certificate, key = self._files
        try:
            # A separate context loads the pair first, because half of a pair would break handshakes.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            self._context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            log.warning("certificate_unusable", certificate=str(certificate), error=str(error))
            return
        self._loaded = found
        log.info("certificate_renewed", certificate=str(certificate))

    def _versions(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_version(file) for file in self._files)


def _version(file: Path) -> tuple[int, int] | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_ino
