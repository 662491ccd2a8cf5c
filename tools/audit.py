"""Check the installed packages against a database of known vulnerabilities. Run as `python -m tools.audit`.

The exit code is 1 if a package is vulnerable. If the database cannot be reached within seconds, the tool prints a prominent
warning and exits with 0, so that a machine without internet access can build.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request

DATABASE = "https://api.osv.dev/v1/query"
_REACHED_WITHIN_S = 4.0
_TIMEOUT_S = 240.0
_ASK = b'{"package": {"name": "headway", "ecosystem": "PyPI"}, "version": "0"}'
_LOUD = "!" * 72


def reachable(url: str = DATABASE) -> bool:
    """Return True if the database answers a query."""
    request = urllib.request.Request(url, data=_ASK, headers={"Content-Type": "application/json"})  # noqa: S310 - https
    try:
        with urllib.request.urlopen(request, timeout=_REACHED_WITHIN_S) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main() -> int:
    """Run the audit, and return the exit code."""
    if not reachable():
        print(f"{_LOUD}\nNOT AUDITED: {DATABASE} cannot be reached, so the installed packages were not checked for\n"  # noqa: T201
              f"known vulnerabilities. Run `make audit` on a machine with internet access.\n{_LOUD}")  # fmt: skip
        return 0
    command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--vulnerability-service=osv"]
    try:
        return subprocess.run(
            [*command, "--progress-spinner=off"], timeout=_TIMEOUT_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"{_LOUD}\nNOT AUDITED: {DATABASE} is too slow.\n{_LOUD}")  # noqa: T201
        return 0


if __name__ == "__main__":
    sys.exit(main())
