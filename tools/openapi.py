"""The API's description as it follows from the code, and whether it breaks the clients of the one that is kept in the tree."""

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
"""Nothing is connected to: the description follows from the routes alone."""


def document() -> dict[str, Any]:
    """As this tree describes itself."""
    return Service(read_settings(_NOWHERE)).app().openapi()


def page() -> str:
    """The document as it is kept."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def broken() -> list[str]:
    """What a client of the document in the tree would notice; nothing while there is none."""
    return breaking(json.loads(FILE.read_text()), document()) if FILE.is_file() else []
