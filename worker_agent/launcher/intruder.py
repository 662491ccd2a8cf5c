"""Test program that tries, inside the confinement of a job, what no job may do. It prints the successes as JSON.

    python -P worker_agent/launcher/intruder.py TARGETS

`TARGETS` is a JSON object: `read` lists files to open, `list` lists folders to read, `write` lists files to
change or create, and `own` is a folder that must be readable and writable. The program imports only the
standard library and nothing of Headway, like any job's script.
"""

import json
import os
import sys
from collections.abc import Callable


def _read(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.read(descriptor, 1)
    finally:
        os.close(descriptor)


def _write(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600))


def _succeeds(attempt: Callable[[str], object], path: str) -> bool:
    try:
        attempt(path)
    except OSError:
        return False
    return True


def main() -> None:
    """Try every access in `TARGETS`, and print the result."""
    targets = json.loads(sys.argv[1])
    attempts: dict[str, Callable[[str], object]] = {"read": _read, "list": os.listdir, "write": _write}
    reached = [
        f"{verb} {path}"
        for verb, attempt in attempts.items()
        for path in targets[verb]
        if _succeeds(attempt, path)
    ]
    own = f"{targets['own']}/probe"
    print(json.dumps({"reached": reached, "own": _succeeds(_write, own) and _succeeds(_read, own)}))  # noqa: T201


if __name__ == "__main__":
    main()
