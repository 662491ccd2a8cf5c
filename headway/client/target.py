"""Choice of the service that the command line and the client use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.errors import HeadwayError
from headway.private_files import write_private

CLIENT_FILE = "client.json"


@dataclass(frozen=True, slots=True)
class Target:
    """A service and its token. `source` names the variable or file that defines them.

    `ca_file` is the certificate file (PEM) of a service that `headway up` runs for other hosts.
    """

    url: str
    token: str | None
    source: str
    ca_file: str | None = None


def home(env: Mapping[str, str]) -> Path:
    """Return the folder of the user's data: `HEADWAY_HOME`, by default `~/.headway`."""
    return Path(env.get("HEADWAY_HOME") or Path.home() / ".headway").expanduser()


def target(env: Mapping[str, str]) -> Target:
    """Return the service of `HEADWAY_URL` and `HEADWAY_TOKEN`, or the one saved by `save_target`.

    Raises:
        HeadwayError: neither names a service, or the file is damaged.
    """
    file = home(env) / CLIENT_FILE
    saved = _read(file)
    url, token = env.get("HEADWAY_URL"), env.get("HEADWAY_TOKEN")
    if url:
        own = saved is not None and saved.url.rstrip("/") == url.rstrip("/")
        known = saved if own and saved else Target(url, None, "")
        return Target(url, token or known.token, "HEADWAY_URL", known.ca_file)
    if saved is None:
        raise HeadwayError(
            "No service is configured.",
            "Start one on this machine with `headway up`, or set HEADWAY_URL and HEADWAY_TOKEN.",
        )
    return Target(saved.url, token or saved.token, str(file), saved.ca_file)


def save_target(folder: Path, url: str, token: str, ca_file: str | None = None) -> Path:
    """Write the file that `target` reads, with access for this user only."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / CLIENT_FILE
    write_private(file, json.dumps({"url": url, "token": token} | ({"ca_file": ca_file} if ca_file else {})))
    return file


def _read(file: Path) -> Target | None:
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        return Target(str(saved["url"]), str(saved["token"]), str(file), saved.get("ca_file"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HeadwayError(
            f"{file} cannot be read: {error}.", "Remove it and run `headway up` again."
        ) from None
