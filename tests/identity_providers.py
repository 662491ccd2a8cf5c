"""Real OpenID providers on this machine, each in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ADA = "ada@example.org"
PEOPLE: Mapping[str, Mapping[str, Any]] = {
    "ada": {"email": ADA, "email_verified": True},
    "eve": {"email": ADA, "email_verified": False},
    "imitator": {"email": ADA, "email_verified": True},
}
"""By subject."""

_NODE = Path(__file__).parent / "oidc"
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


@contextmanager
def node_provider(redirect_uri: str, folder: Path) -> Iterator[str]:
    """One that insists on PKCE and knows the device flow: anybody who types a login is let in, as LOGIN@example.org.

    It is a package of Node.js, which is fetched into `folder`.

    Raises:
        LookupError: there is no Node.js here, or the package cannot be fetched.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise LookupError("there is no Node.js on this machine")
    for name in ("package.json", "provider.mjs"):
        shutil.copy(_NODE / name, folder / name)
    fetch = [
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--no-package-lock",
        "--ignore-scripts",
        "--prefer-offline",
    ]
    fetched = subprocess.run(fetch, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    if fetched.returncode != 0:
        raise LookupError(f"npm could not fetch oidc-provider: {fetched.stderr[-500:]}")
    with running(["node", str(folder / "provider.mjs"), redirect_uri]) as issuer:
        yield issuer
