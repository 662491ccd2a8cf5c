"""Parts of the agent that probe other hosts and answer their probes."""

from __future__ import annotations

import secrets
import threading

from worker_agent.host.identity import Identity
from worker_agent.link.outbox import Outbox
from worker_agent.link.service_api import Membership, ServiceApi
from worker_agent.options import Options
from worker_agent.reach.facts import host_facts
from worker_agent.reach.listener import ProbeListener
from worker_agent.reach.prober import LinkProber


class Reaching:
    """Listener and prober of one agent.

    The listener has the last port of the node's range, which firewalls between hosts must let through anyway. Jobs get
    the others, `last_port` being the last of them.
    """

    def __init__(
        self,
        options: Options,
        identity: Identity,
        api: ServiceApi,
        membership: Membership,
        outbox: Outbox,
        stopping: threading.Event,
    ) -> None:
        def node_id() -> str | None:
            reply = membership.current()
            return None if reply is None else reply.node_id

        ports, key = identity.ports, secrets.token_hex(32)
        port = ports.last if ports.last > ports.first else None
        self.listener = ProbeListener(options.address, port, key, stopping)
        self.last_port = ports.last - 1 if self.listener.listens else ports.last
        port = port if self.listener.listens else None
        kill_wait_s = None if options.pilot is None else options.pilot.kill_wait_s
        self.facts = host_facts(options.address, port, key if port else "", kill_wait_s)
        self.prober = LinkProber(options.name, node_id, outbox, lambda: api.clock_ahead_s)
