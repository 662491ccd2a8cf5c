"""The OpenAPI document of the API, and its breaking changes since the version in docs/reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from service.main import Service
from service.settings import read_settings
from tools.breaking import breaking

FILE = Path(__file__).parent.parent / "docs" / "reference" / "openapi.json"
_NOWHERE = {
    "HEADWAY_DATABASE_URL": "postgresql://headway@127.0.0.1:1/none",
    "HEADWAY_REDIS_URL": "redis://127.0.0.1:1/0",
    "HEADWAY_STORAGE_URL": "memory:///",
    "HEADWAY_API_TOKEN": "none",
    "HEADWAY_JOIN_TOKEN": "none",
}
"""Settings of a service that connects to nothing, because the document depends only on the routes."""


def document() -> dict[str, Any]:
    """Return the document of this tree."""
    return Service(read_settings(_NOWHERE)).app().openapi()


def page() -> str:
    """Return the text of the document's file."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def broken() -> list[str]:
    """Return the breaking changes since the document in docs/reference; empty if that does not exist."""
    return breaking(json.loads(FILE.read_text(encoding="utf-8")), document()) if FILE.is_file() else []
