"""Reports to the service, which renew the lease: one thread, one request at a time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from headway.contract.agents import AnyEntry, Holding, JoinReply, JoinRequest, SlotInfo
from headway.contract.agents import ReportRequest as Request
from headway.contract.links import PeerProbe
from worker_agent.host.folders import boot_s
from worker_agent.link.credentials import NodeKeys
from worker_agent.link.outbox import Outbox
from worker_agent.link.service_api import Backoff, Membership, NotJoined, Refused, ServiceApi, Unreachable
from worker_agent.link.truncation import truncated
from worker_agent.telemetry.facts import Emit, ReportSent, ignore_fact

_log = structlog.get_logger()

BATCH_WINDOW_S = 0.03
"""Seconds that an entry waits for further ones, so that a busy node does not send one request per message."""
_BATCH = 500
_HEALTH_EVERY_S = 30.0
_RENEWAL_AGAIN_S = 60.0
_NEW_S = 10.0
"""Seconds after joining in which reports are more frequent, so that the hosts to probe arrive soon."""
_NEW_REPORT_EVERY_S = 1.0
_TOO_LARGE = 413
_INVALID = 422


class Listener(Protocol):
    """Receiver of the results of reports."""

    def lease_renewed(self, deadline_s: float, stop: list[Holding]) -> None:
        """Note that the lease runs until `deadline_s` (boot-time clock), and that `stop` must not run here."""

    def refused(self, error: Refused) -> None:
        """Note that the service rejects this agent permanently."""


class Reporter:
    """Body of the reporting thread.

    Args:
        keys: credentials to join with.
        request: the request to join with.
        holding: returns the runs to report as alive here; called for every report.
        health: returns the slots with their health; called periodically.
        probe: called after every report with the slots whose devices are to be probed.
        reach: called after every report with the hosts that are to be probed.
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
        reach: Callable[[Sequence[PeerProbe]], None],
        listener: Listener,
        stopping: threading.Event,
        emit: Emit = ignore_fact,
    ) -> None:
        self._api = api
        self._keys = keys
        self._membership = membership
        self._outbox = outbox
        self._request = request
        self._holding = holding
        self._health = health
        self._probe = probe
        self._reach = reach
        self._listener = listener
        self._stopping = stopping
        self._emit = emit
        self._backoff = Backoff(random.Random())
        self._limit = _BATCH
        self._health_due_s = boot_s() + _HEALTH_EVERY_S
        self._unavailable = ""
        """Last logged reason why the service is unavailable; empty while it answers."""
        self._next_due_s = 0.0
        self._new_until_s = 0.0
        self._renewal_due_s: float | None = None
        self._paced_s: float | None = None
        """Seconds between reports if the service of a large cluster sets them; None: as in the join reply."""

    def run(self) -> None:
        """Join, then report until the agent stops. Temporary errors are retried without limit."""
        while not self._stopping.is_set():
            try:
                self.run_once()
            except Unreachable as error:
                if str(error) != self._unavailable:
                    _log.warning("the service is unavailable; retrying", error=str(error))
                self._unavailable = str(error)
                self._stopping.wait(self._backoff.after_s(error))
            except NotJoined as error:
                _log.warning("joining again", reason=str(error))
                self._membership.leave()
                self._stopping.wait(self._backoff.next_s())
            except Refused as error:
                self._listener.refused(error)
                return
            else:
                if self._unavailable:
                    _log.info("the service is available again")
                self._unavailable = ""
                self._backoff.reset()

    def run_once(self) -> None:
        """Join if necessary, wait until a report is due, and send it.

        Raises:
            Unreachable, NotJoined: nothing was lost; the caller should call again.
            Refused: the service rejects this agent.
        """
        self._renew_if_due()
        node = self._membership.current() or self._join()
        if not self._outbox.wait(self._due_in_s()):
            # If the service asked for fewer reports, entries that are not urgent wait for the next regular
            # report.
            self._outbox.wait_urgent(BATCH_WINDOW_S if self._paced_s is None else self._due_in_s())
        entries, acknowledged = self._outbox.take(self._limit)
        self._report(entries, acknowledged)
        is_new = boot_s() < self._new_until_s
        usual_s = min(node.report_every_s, _NEW_REPORT_EVERY_S) if is_new else node.report_every_s
        self._next_due_s = boot_s() + (self._paced_s or usual_s)

    def _due_in_s(self) -> float:
        return max(0.0, self._next_due_s - boot_s())

    def _join(self) -> JoinReply:
        reply = self._keys.join(self._request)
        self._next_due_s = 0.0
        self._new_until_s = boot_s() + _NEW_S
        self._renewal_due_s = None
        _log.info("joined", node=self._request.name, node_id=reply.node_id, slots=len(self._request.slots))
        return reply

    def _renew_if_due(self) -> None:
        """Renew credentials when they are due. On an error retry later; the old ones stay valid meanwhile."""
        node = self._membership.current()
        if node is None:
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
        sent_s = boot_s()  # taken before sending, so the lease ends here no later than at the service
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
            self._emit(ReportSent(None))
            self._drop_refused(entries, error)
            return
        except (Unreachable, NotJoined):
            self._emit(ReportSent(None))
            raise
        self._emit(ReportSent(sent_s + reply.lease_s))
        self._paced_s = reply.report_every_s
        self._limit = min(_BATCH, 2 * self._limit)
        self._outbox.delivered(entries, acknowledged)
        self._listener.lease_renewed(sent_s + reply.lease_s, reply.stop)
        self._probe(reply.probe)
        self._reach(reply.reach)

    def _drop_refused(self, entries: Sequence[AnyEntry], error: Refused) -> None:
        """Find an entry that the service rejects by sending fewer at a time.

        Truncate an entry that is too large. Drop an entry that is rejected even so, so that it does not block
        later entries.
        """
        if error.status not in {_TOO_LARGE, _INVALID} or not entries:
            raise Unreachable(f"The service refused a report with {error.status}: {error}")
        if len(entries) > 1:
            self._limit = len(entries) // 2 if error.status == _TOO_LARGE else 1
            return
        entry = entries[0]
        smaller = truncated(entry) if error.status == _TOO_LARGE else None
        named = {"entry": entry.kind, "sequence": entry.sequence, "error": str(error)}
        if smaller is None:
            _log.error("the service rejects an entry; dropping it", **named)
            self._outbox.delivered(entries, ())
        else:
            _log.warning("an entry is too large for the service; sending it truncated", **named)
            self._outbox.replace_first(smaller)
        self._limit = 1
