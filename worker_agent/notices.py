"""Watch for the provider's word that this host is taken away: one thread that asks every few seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from headway.contract.agents import InterruptionNotice
from worker_agent.folders import boot_s
from worker_agent.metadata import Metadata, NoMetadata, Notice
from worker_agent.outbox import Outbox

_log = structlog.get_logger()

POLL_S = 2.0
"""Notices come two minutes ahead, and the provider asks to be asked every few seconds."""


class NoticeWatcher:
    """The thread's body. Each notice is reported once while this agent lives; the service counts it once in all.

    Args:
        reclaimed: called with the moment (boot-time clock) at which the host is gone.
    """

    def __init__(
        self,
        *,
        metadata: Metadata,
        outbox: Outbox,
        reclaimed: Callable[[float], None],
        stopping: threading.Event,
    ) -> None:
        self._metadata = metadata
        self._outbox = outbox
        self._reclaimed = reclaimed
        self._stopping = stopping
        self._seen: set[Notice] = set()
        self._deaf = False

    def run(self) -> None:
        """Ask until told to stop. A metadata service that does not answer is asked for ever."""
        while not self._stopping.is_set():
            self.run_once()
            self._stopping.wait(POLL_S)
        self._metadata.close()

    def run_once(self) -> None:
        """Ask once."""
        try:
            notices = self._metadata.notices()
        except NoMetadata as error:
            if not self._deaf:
                _log.warning("no word from the metadata service; asking on", error=str(error))
            self._deaf = True
            return
        self._deaf = False
        for notice in notices:
            if notice not in self._seen:
                self._seen.add(notice)
                self._take(notice)

    def _take(self, notice: Notice) -> None:
        self._outbox.add(
            lambda sequence, at: InterruptionNotice(
                sequence=sequence,
                at=at,
                what=notice.what,
                action=notice.action[:64],
                reclaim_at=notice.reclaim_at,
            ),
            urgent=True,
        )
        _log.warning("interruption notice", action=notice.action, reclaim_at=str(notice.reclaim_at))
        if notice.reclaim_at is not None:
            self._reclaimed(boot_s() + (notice.reclaim_at - datetime.now(UTC)).total_seconds())
