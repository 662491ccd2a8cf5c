"""The collector of cyclic garbage, for processes that keep much and make much at a time."""

from __future__ import annotations

import gc
from typing import Final

_NEW: Final = 50_000
"""So many more objects than before are looked at. A round over a large cluster makes hundreds of thousands, none of them garbage
before it ends: by default all of them would be walked again for every 700.
"""


def spare() -> None:
    """Keep the collector from walking what exists now, since it lives for ever, and what is new too often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW, 20, 20)
