"""The Slurm cluster that this machine is a login node of."""

from __future__ import annotations

import subprocess

from headway.local.processes import LocalError
from headway.routes import own_address

_TIMEOUT_S = 30.0
_REMEDY = (
    "Run `headway up` where Slurm's commands work, or give the address that the nodes reach with --address."
)


def address_for_nodes() -> str:
    """Return this machine's address on its route to a node of the Slurm cluster.

    Raises:
        LocalError: Slurm does not tell its nodes, or there is no route to them.
    """
    command = ["sinfo", "--noheader", "--Node", "--format=%o"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "stderr", None) or str(error)
        raise LocalError(f"Slurm does not tell its nodes: {why.strip()}.", _REMEDY) from error
    for node in done.stdout.split():
        address = own_address(node, 1)
        if address is not None:
            return address
    raise LocalError("There is no route to any node of the Slurm cluster.", _REMEDY)
