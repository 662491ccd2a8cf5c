"""Probes of other hosts at the service's request: whether they are reached, the latency, and now and then the bandwidth."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from headway.contract.links import SMALL_PROBE_BYTES, LinkProbe, LinksProbed, PeerProbe
from headway.contract.runtime import CANNOT_REACH
from worker_agent.link.outbox import Outbox
from worker_agent.reach.protocol import OK, ProbeRequest

_log = structlog.get_logger()

CONNECT_S = 2.0
"""Time limit of a connection. The kernel repeats its first packet after 1 s, so one lost packet does no harm."""
TRANSFER_S = 0.1
"""Longest measurement of bandwidth."""
_ANSWER_S = 5.0
_AT_ONCE = 16
_AGAIN_S = 5.0
"""Seconds after a result in which a repeated order is ignored: the service may have sent it before it had the result."""
_CHUNK_BYTES = 1 << 18


class LinkProber:
    """Probes of peers, each in a thread.

    Args:
        name: name of this node, for messages.
        node_id: returns the id of this node, None before it has joined.
        outbox: queue of the results.
        clock_ahead_s: returns the lead of this host's clock over the service's.
    """

    def __init__(
        self,
        name: str,
        node_id: Callable[[], str | None],
        outbox: Outbox,
        clock_ahead_s: Callable[[], float | None],
    ) -> None:
        self._name = name
        self._node_id = node_id
        self._outbox = outbox
        self._clock_ahead_s = clock_ahead_s
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._busy: dict[str, float] = {}
        """Monotonic time by peer until which its orders are ignored."""

    def request(self, orders: Sequence[PeerProbe]) -> None:
        """Start the probes that are not running already."""
        node_id, now_s = self._node_id(), time.monotonic()
        if node_id is None:
            return
        with self._lock:
            self._busy = {peer: until_s for peer, until_s in self._busy.items() if until_s > now_s}
            fresh = [one for one in orders if one.peer not in self._busy]
            self._busy |= {one.peer: float("inf") for one in fresh}
        for one in fresh:
            threading.Thread(target=self._probe, args=(one, node_id), daemon=True).start()

    def _probe(self, order: PeerProbe, node_id: str) -> None:
        try:
            with self._slots:
                found = probe(order, node_id, self._name)
            if found.failure:
                _log.warning("a host cannot be reached", failure=found.failure)
            draft = partial(LinksProbed, clock_ahead_s=self._clock_ahead_s(), pairs=[found])
            self._outbox.add(draft, urgent=True)
        finally:
            with self._lock:
                self._busy[order.peer] = time.monotonic() + _AGAIN_S


def probe(order: PeerProbe, node_id: str, name: str) -> LinkProbe:
    """Return the result of one probe by the node `name`."""
    result = partial(LinkProbe, peer=order.peer, address=order.address, port=order.port)
    where = f"{name} {CANNOT_REACH} {order.address}:{order.port}"
    began_s = time.monotonic()
    try:
        connection = socket.create_connection((order.address, order.port), CONNECT_S)
    except TimeoutError:
        return result(failure=f"{where}: no answer")
    except OSError as error:
        return result(failure=f"{where}: {(error.strerror or str(error)).lower()}")
    with connection:
        connect_s = time.monotonic() - began_s
        request = ProbeRequest(node_id, order.nonce, order.size_bytes, order.token)
        measures = order.size_bytes > SMALL_PROBE_BYTES
        try:
            received, took_s = _receive(connection, request, TRANSFER_S if measures else _ANSWER_S)
        except OSError:
            # The peer accepts connections, and its agent is late or has just restarted: nothing is wrong with the link.
            return result(connect_s=connect_s)
    if received is not None and not measures and received < order.size_bytes:
        return result(
            failure=f"{where}: it connects, but packets of full size do not arrive (MTU?)",
            connect_s=connect_s,
        )
    rate = received / took_s if measures and received and took_s > 0 else None
    return result(connect_s=connect_s, bytes_per_s=rate)


def _receive(connection: socket.socket, request: ProbeRequest, limit_s: float) -> tuple[int | None, float]:
    """Return the bytes that arrived within the limit, None for a refused token, and the seconds that they took."""
    connection.settimeout(_ANSWER_S)
    connection.sendall(request.line())
    head = b""
    while len(head) < len(OK):
        piece = connection.recv(len(OK) - len(head))
        if not piece:
            return None, 0.0
        head += piece
    if head != OK:
        return None, 0.0
    received, began_s = 0, time.monotonic()
    while received < request.size_bytes:
        rest_s = began_s + limit_s - time.monotonic()
        if rest_s <= 0:
            break
        connection.settimeout(rest_s)
        try:
            piece = connection.recv(_CHUNK_BYTES)
        except TimeoutError:
            break
        if not piece:
            break
        received += len(piece)
    return received, time.monotonic() - began_s
