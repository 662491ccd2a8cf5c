"""Check of the object storage. `service.domain.nodes.diagnosis` judges everything that the database knows."""

from __future__ import annotations

import time

from headway.contract.views.diagnosis import Check, Level
from service.domain.shared.errors import HeadwayServiceError
from service.usecases.ports.storage import StoredObjects

SLOW_STORAGE_S = 5.0
_FOLDER = "diagnosis"


async def check_storage(storage: StoredObjects, name: str) -> Check:
    """Check that a small object of this name can be written, read and deleted."""
    key, data, began_s = f"{_FOLDER}/{name}", name.encode(), time.monotonic()
    why = "Bundles cannot be uploaded, logs are kept on the hosts, and jobs have no checkpoints to start again from."
    hint = "Check HEADWAY_STORAGE_URL, its credentials and its free space."
    try:
        await storage.put(key, data)
        same = await storage.get(key) == data
        await storage.delete(key)
    except HeadwayServiceError as error:
        return Check(name="storage", level=Level.FAIL, found=f"{error.message}.", why=why, hint=hint)
    if not same:
        found = "Object storage returned other bytes than were written."
        return Check(name="storage", level=Level.FAIL, found=found, why=why, hint=hint)
    took_s = time.monotonic() - began_s
    if took_s > SLOW_STORAGE_S:
        return Check(
            name="storage",
            level=Level.WARN,
            found=f"Object storage took {took_s:.1f} s to write, read and delete a few bytes.",
            why="Checkpoints and starts wait for it.",
            hint="Choose object storage closer to the service, or check its other load.",
        )
    return Check(name="storage", level=Level.OK, found="An object was written, read and deleted.")
