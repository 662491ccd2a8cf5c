"""Which connections with peers show that one of them is lost."""

from __future__ import annotations

import socket

from headway.train.collectives.gloo import Gloo
from headway.train.host.connections import connections
from headway.train.membership.peers import Peers
from headway.train.membership.standstill import PeerLinks


def test_peer_that_closes_its_connection_is_lost_once_the_wait_went_on() -> None:
    before = connections()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as mine,
    ):
        other, _ = server.accept()
        peers = Peers(Gloo(), rank=0, world_size=1)
        peers._connections = connections() - before
        links = PeerLinks(peers)
        assert not links.is_lost(100.0, 50.0), "as all connections are open"
        assert not links.is_lost(10_000.0, 50.0), "however long a healthy wait takes"
        other.close()
        assert mine.recv(1) == b""
        assert not links.is_lost(10_001.0, None)
        assert not links.is_lost(10_002.0, 60.0)
        assert not links.is_lost(10_002.4, 60.0)
        assert not links.is_lost(10_002.6, 70.0), "as another wait began"
        assert links.is_lost(10_003.2, 70.0)
