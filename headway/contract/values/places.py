"""Storage locations by URI."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit


def folder_of(uri: str) -> Path | None:
    """Return the folder of a URI (`file:///folder`, or a bare path); None for a URI of an object store."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)).absolute() if parts.scheme in {"", "file"} else None
