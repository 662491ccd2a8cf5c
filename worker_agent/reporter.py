"""Send news to the service and renew the lease: one thread, one request at a time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from headway.contract.agents import AnyEntry, Holding, JoinReply, JoinRequest, SlotInfo
from headway.contract.agents import ReportRequest as Request
from worker_agent.credentials import NodeKeys
from worker_agent.facts import Sent, Tell, tell_nobody
from worker_agent.folders import boot_s
from worker_agent.outbox import Outbox
from worker_agent.service_api import Backoff, Membership, NotJoined, Refused, ServiceApi, Unreachable
from worker_agent.slimming import slimmed

_log = structlog.get_logger()

BATCH_WINDOW_S = 0.03
"""News waits this long for company, so that a busy node does not send a request per message."""
_BATCH = 500
_HEALTH_EVERY_S = 30.0
_RENEWAL_AGAIN_S = 60.0
_TOO_LARGE = 413
_INVALID = 422


class Listener(Protocol):
    """Who wants to know what came of a report."""

    def lease_renewed(self, deadline_s: float, stop: list[Holding]) -> None:
        """The lease runs until `deadline_s` (boot-time clock); `stop` must not run here."""

    def refused(self, error: Refused) -> None:
        """The service does not want this agent, for good."""


class Reporter:
    """The thread's body.

    Args:
        keys: how to join, and to renew credentials when the service wants that.
        request: what to join with.
        holding: what has to be said to be alive here, asked for at every report.
        health: the slots with their health, asked for now and then.
        probe: called with the slots whose devices are to be tried out, after every report.
    """

    def __init__(
        self,
        *,
        api: ServiceApi,
        keys: NodeKeys,
        membership: Membership,
        outbox: Outbox,
        request: JoinRequest,
        holding: Callable[[], Sequence[Holding]],
        health: Callable[[], list[SlotInfo]],
        probe: Callable[[Sequence[int]], None],
        listener: Listener,
        stopping: threading.Event,
        tell: Tell = tell_nobody,
    ) -> None:
        self._api = api
        self._keys = keys
        self._membership = membership
        self._outbox = outbox
        self._request = request
        self._holding = holding
        self._health = health
        self._probe = probe
        self._listener = listener
        self._stopping = stopping
        self._tell = tell
        self._backoff = Backoff(random.Random())
        self._limit = _BATCH
        self._health_due_s = boot_s() + _HEALTH_EVERY_S
        self._away = ""
        """Why the service is away, as it was last said; empty when it answers."""
        self._next_due_s = 0.0
        self._renewal_due_s: float | None = None
        self._paced_s: float | None = None
        """How often to report in a cluster that is too large for more; None: as agreed on when joining."""

    def run(self) -> None:
        """Join, then report until told to stop. Problems that pass are retried for ever."""
        while not self._stopping.is_set():
            try:
                self.run_once()
            except Unreachable as error:
                if str(error) != self._away:
                    _log.warning("the service is away; trying again until it is back", error=str(error))
                self._away = str(error)
                self._stopping.wait(self._backoff.after_s(error))
            except NotJoined as error:
                _log.warning("joining again", reason=str(error))
                self._membership.leave()
                self._stopping.wait(self._backoff.next_s())
            except Refused as error:
                self._listener.refused(error)
                return
            else:
                if self._away:
                    _log.info("the service is back")
                self._away = ""
                self._backoff.reset()

    def run_once(self) -> None:
        """Join if that is still to be done, wait until a report is due, send it.

        Raises:
            Unreachable, NotJoined: nothing was lost; call again.
            Refused: the service does not want this agent.
        """
        self._renew_if_due()
        node = self._membership.current() or self._join()
        if not self._outbox.wait(self._due_in_s()):
            # What can wait does so until the next report is due where the service has asked for few of them.
            self._outbox.wait_urgent(BATCH_WINDOW_S if self._paced_s is None else self._due_in_s())
        entries, acknowledged = self._outbox.take(self._limit)
        self._report(entries, acknowledged)
        self._next_due_s = boot_s() + (self._paced_s or node.report_every_s)

    def _due_in_s(self) -> float:
        return max(0.0, self._next_due_s - boot_s())

    def _join(self) -> JoinReply:
        reply = self._keys.join(self._request)
        self._next_due_s = 0.0
        self._renewal_due_s = None
        _log.info("joined", node=self._request.name, node_id=reply.node_id, slots=len(self._request.slots))
        return reply

    def _renew_if_due(self) -> None:
        """Renew credentials now and then. What comes in between is tried again; those of before work meanwhile."""
        node = self._membership.current()
        if node is None or node.renew_credentials_s is None:
            return
        now_s = boot_s()
        if self._renewal_due_s is None:
            self._renewal_due_s = now_s + node.renew_credentials_s
        if now_s < self._renewal_due_s:
            return
        try:
            self._keys.renew(node)
        except Unreachable as error:
            _log.warning("credentials are not renewed yet", error=str(error))
            self._renewal_due_s = now_s + min(_RENEWAL_AGAIN_S, node.renew_credentials_s)
        else:
            self._renewal_due_s = None

    def _report(self, entries: Sequence[AnyEntry], acknowledged: Sequence[str]) -> None:
        sent_s = boot_s()  # before sending: the service's clock for us starts later, never earlier
        slots = []
        if sent_s >= self._health_due_s:
            slots, self._health_due_s = self._health(), sent_s + _HEALTH_EVERY_S
        request = Request(
            instance=self._request.instance,
            acknowledged=list(acknowledged),
            entries=list(entries),
            holding=list(self._holding()),
            slots=slots,
        )
        try:
            reply = self._api.report(request)
        except Refused as error:
            self._tell(Sent(None))
            self._drop_refused(entries, error)
            return
        except (Unreachable, NotJoined):
            self._tell(Sent(None))
            raise
        self._tell(Sent(sent_s + reply.lease_s))
        self._paced_s = reply.report_every_s
        self._limit = min(_BATCH, 2 * self._limit)
        self._outbox.delivered(entries, acknowledged)
        self._listener.lease_renewed(sent_s + reply.lease_s, reply.stop)
        self._probe(reply.probe)

    def _drop_refused(self, entries: Sequence[AnyEntry], error: Refused) -> None:
        """Find the entry that the service cannot take by sending fewer at a time. What is too large goes on without its long
        parts; what cannot be taken even so is dropped, so that it holds up nothing behind it.
        """
        if error.status not in {_TOO_LARGE, _INVALID} or not entries:
            raise Unreachable(f"The service refused a report with {error.status}: {error}")
        if len(entries) > 1:
            self._limit = len(entries) // 2 if error.status == _TOO_LARGE else 1
            return
        entry = entries[0]
        smaller = slimmed(entry) if error.status == _TOO_LARGE else None
        named = {"entry": entry.kind, "sequence": entry.sequence, "error": str(error)}
        if smaller is None:
            _log.error("the service cannot take an entry; dropping it", **named)
            self._outbox.delivered(entries, ())
        else:
            _log.warning("an entry is too large for the service; sending it without its long parts", **named)
            self._outbox.replace_first(smaller)
        self._limit = 1
