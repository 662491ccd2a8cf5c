"""Look at what a service rests on, beyond its database: see `domain.diagnosis` for the rest."""

from __future__ import annotations

import time

from headway.contract.diagnosis import Check, Level
from service.domain.errors import HeadwayServiceError
from service.usecases.outside_ports import Storage

SLOW_STORAGE_S = 5.0
_FOLDER = "diagnosis"


async def check_storage(storage: Storage, name: str) -> Check:
    """Write, read and delete a small object of this name."""
    key, data, began_s = f"{_FOLDER}/{name}", name.encode(), time.monotonic()
    why = "Bundles cannot be uploaded, logs are kept on the hosts, and jobs have no checkpoints to start again from."
    hint = "See HEADWAY_STORAGE_URL, its credentials, and the room that is left."
    try:
        await storage.put(key, data)
        same = await storage.get(key) == data
        await storage.delete(key)
    except HeadwayServiceError as error:
        return Check(name="storage", level=Level.FAIL, found=f"{error.message}.", why=why, hint=hint)
    if not same:
        found = "Object storage gives back something else than was written."
        return Check(name="storage", level=Level.FAIL, found=found, why=why, hint=hint)
    took_s = time.monotonic() - began_s
    if took_s > SLOW_STORAGE_S:
        return Check(
            name="storage",
            level=Level.WARN,
            found=f"Object storage took {took_s:.1f} s to write, read and delete a few bytes.",
            why="Checkpoints and starts wait for it.",
            hint="Choose one that is nearer, or see what else uses it.",
        )
    return Check(name="storage", level=Level.OK, found="An object was written, read and deleted.")
