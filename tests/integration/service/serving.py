"""The API on a port of this machine, for clients that know nothing of being tested."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI


class _Announcing(uvicorn.Server):
    """Says when it listens, or that it never will."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.decided = threading.Event()

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        self.decided.set()

    def port(self) -> int:
        """Chosen by the system: nobody can have taken it in between."""
        (server,) = self.servers
        port: int = server.sockets[0].getsockname()[1]
        return port


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The address at which it answers, in a thread with a loop of its own, until the block ends."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, access_log=False, timeout_graceful_shutdown=1
    )
    server = _Announcing(config)

    def run() -> None:
        try:
            asyncio.run(server.serve())
        finally:
            server.decided.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert server.decided.wait(60), "the service does not start"
        assert server.started, "the service does not start"
        yield f"http://127.0.0.1:{server.port()}"
    finally:
        server.should_exit = True
        thread.join()
