"""Connections of a rank in the children that it forks."""

from __future__ import annotations

import os
import signal
import socket

from headway.train.host.connections import connections, release


def test_connection_that_a_child_has_released_ends_with_the_parent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        theirs.settimeout(20)
        kept = os.readlink(f"/proc/self/fd/{mine.fileno()}")  # noqa: PTH115  # a socket, not a file
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            release(frozenset({kept}))
            os.write(writes, b"1" if kept not in connections() and os.fstat(mine.fileno()) else b"0")
            signal.pause()
        try:
            assert os.read(reads, 1) == b"1"
            mine.sendall(b"x")  # the parent's own is as it was
            assert theirs.recv(1) == b"x"
            mine.close()
            assert theirs.recv(1) == b""
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reads)
            os.close(writes)
            theirs.close()
