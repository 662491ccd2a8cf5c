"""Commands are tested as programs read them: as wide as their tables are."""

from __future__ import annotations

import os

# Processes of a parallel test run have it, and tables would be cut to 80 columns.
os.environ.pop("COLUMNS", None)
