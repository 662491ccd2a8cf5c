"""Fetch or save one output folder with the rights of the job's ranks, and no others.

`python -m worker_agent.output.child` reads an order as JSON from its standard input, confines itself as a
rank is confined, and writes the outcome as JSON to its standard output. The job chooses the names and links
in the folder, and may choose the folder of its checkpoints too. Because of the confinement, none of them can
lead the process outside the job's own files.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from headway.storage.stores import open_storage
from worker_agent.launcher import processes
from worker_agent.launcher.confinement import Confinement, enter
from worker_agent.output.fetching import copy, fetch
from worker_agent.output.taking import save_and_mark, take
from worker_agent.output.tree import open_tree
from worker_agent.output.values import Below, CannotSave, Outcome, Request

EXIT_FAILED: Final = 1


class ChildOrder(BaseModel):
    """Order of the agent to a child process."""

    request: Request
    root: str
    """Folder that the job cannot replace."""
    inner: str
    """Path of the output folder below `root`."""
    uri: str
    """Storage location of the job's checkpoints."""
    below: str = ""
    """Prefix of the folder's objects there."""
    keys: str | None = None
    """Content of the file with keys or a ticket, if there is one. The ranks' own copy may not be readable yet."""
    env: dict[str, str]
    """Settings of the object store's client, including the job's own."""
    confinement: Confinement


class ChildReply(BaseModel):
    """Reply of a child: the outcome, or an error. `permanent` means that a retry fails in the same way."""

    outcome: Outcome | None = None
    error: str = ""
    permanent: bool = False


def main() -> int:
    """Read one order, execute it, and return the exit code."""
    processes.die_with_parent()
    order = ChildOrder.model_validate_json(sys.stdin.buffer.read())
    enter(order.confinement)
    os.environ.update(order.env)
    os.chdir("/")
    reply = carry_out(order)
    sys.stdout.write(reply.model_dump_json())
    return 0 if reply.outcome is not None else EXIT_FAILED


def carry_out(order: ChildOrder) -> ChildReply:
    """Fetch or save the folder, and return the reply."""
    do = {"copy": copy, "fetch": fetch, "save": save_and_mark, "take": take}[order.request.do]
    try:
        store = open_storage(order.uri, None if order.keys is None else _in_memory(order.keys))
        with open_tree(Path(order.root), order.inner, make=True) as tree:
            there = Below(store, order.below) if order.below else store
            return ChildReply(outcome=do(there, tree, order.request))
    except CannotSave as error:
        return ChildReply(error=str(error), permanent=True)
    except OSError as error:
        return ChildReply(error=error.strerror if error.errno and error.strerror else str(error))


def _in_memory(text: str) -> Path:
    """Return the path of a file that only this process can read."""
    descriptor = os.memfd_create("storage")
    os.write(descriptor, text.encode())
    return Path(f"/proc/self/fd/{descriptor}")


if __name__ == "__main__":
    sys.exit(main())
