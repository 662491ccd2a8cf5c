"""Requests to webhooks: to public addresses only, without redirects and proxies, with limits."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import httpcore

from headway.contract.values.redaction import without_tokens
from service.domain.notifications.addresses import Network, is_allowed
from service.domain.notifications.retries import Answer
from service.usecases.ports.notifications import WebhookSender

_TIMEOUT_S: Final = 10.0
"""Time limit of an attempt as a whole, shorter than a claim."""
_ANSWER_BYTES: Final = 2048
"""Bytes of an answer that are read and stored."""
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\ufffd]+")


class AddressRefused(httpcore.ConnectError):
    """Error for a host without an address that messages may be sent to."""


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """Network that connects only to addresses that messages may be sent to.

    It resolves a name once, checks every address and connects to a checked one, so that a second resolution
    cannot lead elsewhere. TLS still checks the certificate of the name.
    """

    def __init__(self, allowed: Sequence[Network], inner: httpcore.AsyncNetworkBackend | None = None) -> None:
        self._allowed = tuple(allowed)
        self._inner = inner or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface of httpcore
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await _resolved(host, port)
        refused = [one for one in addresses if not is_allowed(one, self._allowed)]
        if refused:
            raise AddressRefused(
                f"{host} has the address {refused[0]}, which is not public; an operator can allow its network "
                "in HEADWAY_WEBHOOK_NETWORKS"
            )
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002
    ) -> httpcore.AsyncNetworkStream:
        raise AddressRefused(f"{path} is a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class HttpSender(WebhookSender):
    """Sender of messages by HTTP. `allowed` are the networks that are not public but allowed."""

    def __init__(self, allowed: Sequence[Network] = (), tls: ssl.SSLContext | None = None) -> None:
        self._network = GuardedNetwork(allowed)
        self._tls = tls or ssl.create_default_context()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        sent = {**headers, "User-Agent": "headway", "Content-Length": str(len(body))}
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                # One connection per attempt: a kept connection could outlive a change of the name's address.
                async with (
                    httpcore.AsyncConnectionPool(
                        ssl_context=self._tls, network_backend=self._network
                    ) as pool,
                    pool.stream("POST", url, headers=list(sent.items()), content=body) as answer,
                ):
                    return Answer(answer.status, await _beginning(answer))
        except TimeoutError:
            return Answer(None, f"no answer within {_TIMEOUT_S:.0f} s")
        except (
            httpcore.NetworkError,
            httpcore.ProtocolError,
            httpcore.TimeoutException,
            ssl.SSLError,
        ) as error:
            return Answer(None, f"{_name(error)}: {_printable(str(error))}".rstrip(": "))
        except (OSError, ValueError, httpcore.UnsupportedProtocol) as error:
            return Answer(None, f"{type(error).__name__}: {_printable(str(error))}".rstrip(": "))


async def _resolved(host: str, port: int) -> list[str]:
    """Return the addresses of a host, in the resolver's order. Raise ConnectError if it has none."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore.ConnectError(f"{host} cannot be resolved: {error.strerror or error}") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def _beginning(answer: httpcore.Response) -> str:
    read = b""
    async for chunk in answer.aiter_stream():
        read += chunk
        if len(read) >= _ANSWER_BYTES:
            break
    return without_tokens(_printable(read[:_ANSWER_BYTES].decode("utf-8", "replace")))


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text).strip()[:500]


def _name(error: Exception) -> str:
    return "refused" if isinstance(error, AddressRefused) else type(error).__name__
