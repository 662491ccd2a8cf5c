"""Files that only this user may read. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(file: Path, text: str) -> None:
    """Replace a file as a whole, with access for this user only."""
    temporary = file.with_suffix(".tmp")
    with os.fdopen(
        os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
    ) as handle:
        handle.write(text)
    temporary.replace(file)
