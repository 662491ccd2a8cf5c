"""A service of canned answers on a loopback address, and the command line as a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from tests.unit.headway.stub import StubService


@contextmanager
def served(service: StubService) -> Iterator[str]:
    """Serve the answers by HTTP, and yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = httpx.Request(self.command, f"http://stub{self.path}", content=content)
            response = service._handle(request)
            self.send_response(response.status_code)
            self.send_header("Content-Length", str(len(response.content)))
            self.end_headers()
            self.wfile.write(response.content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def headway(
    *arguments: str,
    url: str,
    env: dict[str, str] | None = None,
    stdin: bytes = b"",
    redirected: str = "",
) -> subprocess.CompletedProcess[bytes]:
    """Run the command line with only these variables besides the paths, and redirections as a shell has them."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "VIRTUAL_ENV") if name in os.environ}
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "headway.cli", *arguments],
        env={**kept, "HEADWAY_URL": url, "HEADWAY_TOKEN": "secret", **(env or {})},
        input=stdin,
        capture_output=True,
        check=False,
    )
