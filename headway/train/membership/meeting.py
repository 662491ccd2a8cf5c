"""The meeting of the members of a generation in their store, and the failures of peers."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from headway.contract.orders import Order
from headway.contract.runtime import CANNOT_REACH
from headway.lookups import no_name_servers
from headway.train.collectives.losses import GROUP_ERRORS, is_loss
from headway.train.host.connections import connections, disconnect, has_unanswered_attempt
from headway.train.host.reach import ReachPatience, reach_failure, try_server

_TRY_S = 1.0
"""Timeout of the first attempts to reach a store; torch cannot be interrupted during an attempt."""
_LONGEST_TRY_S = 60.0
_PAUSE_S = 0.05
"""Pause between two attempts to reach a store."""
_WATCH_S = 0.05
"""Pause between two checks whether members are still to be waited for."""
_SILENT_WATCHES = 4
"""Checks in a row that find an attempt without an answer: a second packet that arrives is answered at once."""
_LONGEST_S = 30 * 86_400.0
"""Replacement for `inf`, because torch needs a finite number."""


class PeersLost(Exception):  # not an error: training handles it at the next boundary
    """Raised when a peer is gone, or its messages do not arrive."""


class NeverMet(PeersLost):
    """Raised when the members of a generation did not all connect to each other."""


class Superseded(Exception):  # likewise
    """Raised when another event became due during a wait for members."""


def leave_marker(
    order: Order, name: str, mark: str, timeout: timedelta, superseded: Callable[[], bool]
) -> None:
    """Store a marker for the members of a generation to which this process does not belong.

    Raises:
        PeersLost: their store is gone.
        Superseded: the store does not answer, and another event is due.
    """
    with peers_may_be_lost():
        open_store(order, timeout, superseded).set(name, mark)


def open_store(order: Order, timeout: timedelta, superseded: Callable[[], bool]) -> Any:
    """Open the generation's own part of an order's store, so that no address of an old generation is used."""
    port = int(order.store.rpartition(":")[2])
    give_up_s = time.monotonic() + timeout.total_seconds()
    patience, limit_s = ReachPatience(order.store), _TRY_S
    while True:
        began_s = math.inf  # it has not begun if nothing answers
        try:
            # Torch writes several lines for each second without an answer: it tries only where something answers.
            host = try_server(order.store, _TRY_S)
            began_s = time.monotonic()
            with no_name_servers():
                limit = timedelta(seconds=limit_s)
                store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)
        except (OSError, RuntimeError) as error:
            if superseded():
                raise Superseded from None
            patience.warn(error)
            if time.monotonic() > give_up_s or patience.is_cut_off(error):
                raise RuntimeError(patience.failure(error)) from None
            limit_s = next_limit_s(limit_s, time.monotonic() - began_s)
            time.sleep(_PAUSE_S)
        else:
            store.set_timeout(timeout)
            return PrefixStore(f"headway/{order.generation}", store)


def next_limit_s(limit_s: float, took_s: float) -> float:
    """Return the time limit of the next attempt to reach a store that answers, after one that failed.

    Torch checks its limit between the parts of an attempt. One that took much longer was held up by this host, for example by its
    resolver, so that every other with the same limit would fail, too: the next may take twice as long, up to a minute.

    Args:
        limit_s: limit of the attempt that failed, in seconds.
        took_s: seconds that it took.
    """
    return max(limit_s, min(2 * took_s, _LONGEST_TRY_S)) if took_s > 2 * limit_s else limit_s


def wait_for_all(store: Any, order: Order, superseded: Callable[[], bool], wait_s: float) -> None:
    """Wait for all members. `disconnect_when` must surround the call: it ends the wait by closing connections."""
    if store.add("here", 1) == order.world_size:
        store.set("all here", "1")
    try:
        # In another thread, because this one must handle signals meanwhile, such as the request to stop.
        with ThreadPoolExecutor(1) as aside:
            aside.submit(store.wait, ["all here"], timedelta(seconds=min(wait_s, _LONGEST_S))).result()
    except RuntimeError as error:
        if superseded():
            raise Superseded from None
        raise NeverMet(
            f"not all {order.world_size} members of generation {order.generation} arrived"
        ) from error


@contextmanager
def peers_may_be_lost(failure: type[PeersLost] = PeersLost) -> Iterator[None]:
    """Raise the failure for an error that means a lost peer."""
    try:
        yield
    except GROUP_ERRORS as error:
        if not is_loss(error):
            raise
        raise failure(reach_failure(str(error))) from error


@contextmanager
def disconnect_when(
    superseded: Callable[[], bool],
    before: frozenset[str],
    patience_s: float = math.inf,
    *,
    listening: bool = False,
) -> Iterator[None]:
    """Close the connections made in the block as soon as `superseded` returns True, or the patience is over.

    `listening`: close listening sockets made in the block, too.

    A finite patience is over, too, when a host leaves attempts to connect without an answer for more than a second.

    Connecting to a member that has died meanwhile would otherwise take as long as the group's timeout.

    Raises:
        NeverMet: the patience is over, and no error names a host that was not reached.
    """
    over, impatient = threading.Event(), threading.Event()

    def watch() -> None:
        silent = 0
        waited_s = 0.0  # by the number of waits: each takes longer while other processes have the processors
        while not over.wait(_WATCH_S):
            waited_s += _WATCH_S
            if patience_s < math.inf:
                silent = silent + 1 if has_unanswered_attempt(connections() - before) else 0
            if waited_s > patience_s or silent >= _SILENT_WATCHES:
                impatient.set()
            if impatient.is_set() or superseded():
                disconnect(connections() - before, listening=listening)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
        if impatient.is_set():  # at the last moment: the connections are closed
            raise NeverMet("the members did not all connect in time")
    except RuntimeError as error:
        if impatient.is_set() and CANNOT_REACH not in reach_failure(str(error)):
            raise NeverMet("the members did not all connect in time") from error
        raise
    finally:
        over.set()
        watcher.join()
