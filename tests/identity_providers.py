"""Real OpenID providers on this machine, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

ADA = "ada@example.org"
PEOPLE: Mapping[str, Mapping[str, Any]] = {
    "ada": {"email": ADA, "email_verified": True},
    "eve": {"email": ADA, "email_verified": False},
    "imitator": {"email": ADA, "email_verified": True},
}
"""By subject."""

_PYTHON = """
import json, sys
import oidc_provider_mock as mock
people = [mock.User(sub=sub, claims=claims) for sub, claims in json.loads(sys.argv[1]).items()]
with mock.run_server_in_thread(user_claims=people) as server:
    print(f"http://localhost:{server.server_port}", flush=True)
    sys.stdin.read()
"""


@contextmanager
def running(command: list[str]) -> Iterator[str]:
    """The issuer of a provider that a program runs until its standard input ends, once it has printed it."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            issuer = process.stdout.readline().strip()
            assert issuer, f"{command[0]} did not start"
            yield issuer
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def python_provider() -> Iterator[str]:
    """One that knows `PEOPLE`: whoever types a subject is let in. It knows no device flow."""
    with running([sys.executable, "-W", "ignore", "-c", _PYTHON, json.dumps(PEOPLE)]) as issuer:
        yield issuer
