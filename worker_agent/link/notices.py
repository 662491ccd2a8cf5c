"""Polling for interruption notices of this host, in one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import structlog

from headway.contract.agents import InterruptionNotice
from worker_agent.host.folders import boot_s
from worker_agent.host.metadata import NoMetadata, Notice
from worker_agent.link.outbox import Outbox

_log = structlog.get_logger()

POLL_S = 2.0
"""Seconds between two polls. A notice comes two minutes ahead; the provider recommends a few seconds."""


class Notices(Protocol):
    """Source of notices: a metadata service, or Slurm's signals."""

    def notices(self) -> list[Notice]:
        """Return the current notices. Raises: NoMetadata."""

    def close(self) -> None:
        """Close the connection to the source."""


class NoticeWatcher:
    """Body of the polling thread. It reports each notice once per agent process; the service counts a notice once.

    Args:
        reclaimed: called with the time (boot-time clock) at which the provider takes the host away.
    """

    def __init__(
        self,
        *,
        source: Notices,
        outbox: Outbox,
        reclaimed: Callable[[float], None],
        stopping: threading.Event,
    ) -> None:
        self._source = source
        self._outbox = outbox
        self._reclaimed = reclaimed
        self._stopping = stopping
        self._reported: set[Notice] = set()
        self._unavailable = False
        self._polling = threading.Lock()

    def run(self) -> None:
        """Poll until the agent stops. An unavailable source is polled again without limit."""
        while not self._stopping.is_set():
            self.run_once()
            self._stopping.wait(POLL_S)
        self._source.close()

    def run_once(self) -> None:
        """Poll the source once, and report new notices. Thread-safe, but not for a signal handler."""
        with self._polling:
            self._poll()

    def _poll(self) -> None:
        try:
            notices = self._source.notices()
        except NoMetadata as error:
            if not self._unavailable:
                _log.warning("the metadata service does not answer; polling continues", error=str(error))
            self._unavailable = True
            return
        self._unavailable = False
        for notice in notices:
            if notice not in self._reported:
                self._reported.add(notice)
                self._report(notice)

    def _report(self, notice: Notice) -> None:
        draft = partial(
            InterruptionNotice, what=notice.what, action=notice.action[:64], reclaim_at=notice.reclaim_at
        )
        self._outbox.add(draft, urgent=True)
        _log.warning("interruption notice", action=notice.action, reclaim_at=str(notice.reclaim_at))
        if notice.reclaim_at is not None:
            self._reclaimed(boot_s() + (notice.reclaim_at - datetime.now(UTC)).total_seconds())
