"""Reports of agents about output folders: events of the job, and warnings about files that may be lost."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from headway.contract.agents import OutputReport
from headway.contract.values.quantities import size_text
from headway.visible_text import visible_line
from service.domain.jobs.job import Job
from service.usecases.jobs.events import record
from service.usecases.ports.nodes import NodeRecord
from service.usecases.ports.transactions import Transaction

_SHOWN_PATHS: Final = 10


async def record_output(
    tx: Transaction, node: NodeRecord, job: Job, entry: OutputReport, now: datetime
) -> Job:
    """Record a report about the output folder of a run for which the node holds slots.

    Ignore other reports.

    The failure of a last save also appears in the message of the job's end (`service.domain.life.ends`).
    """
    if not await tx.credentials.holds(node.id, job.id, entry.generation):
        return job
    message = output_message(entry, node.name)
    data = {
        "node": node.name,
        "files": entry.files,
        "size_bytes": entry.size_bytes,
        "moved_bytes": entry.moved_bytes,
        "paths": list(entry.paths),
    }
    await record(tx, job, f"output_{entry.what}", message=message, now=now, data=data)
    return job


def output_message(entry: OutputReport, node: str) -> str:
    """Return a message that says what happened to the output folder, why, and what to do about it."""
    folder = f"{_count(entry.files)}, {size_text(entry.size_bytes)}"
    match entry.what:
        case "saved":
            saved = f"the output folder is saved from node {node}: {folder}, {size_text(entry.moved_bytes)} of it new"
            return (
                f"{saved}; not saved, since they cannot be read or are no regular files: {_listed(entry)}"
                if entry.paths
                else saved
            )
        case "fetched":
            return f"the output folder is on node {node}: {folder}, {size_text(entry.moved_bytes)} fetched"
        case "failed" | "lost" if entry.paths:
            return f"not saved of the output folder on node {node}: {_listed(entry)}. {entry.message}"
        case "failed":
            return (
                f"the output folder could not be saved from node {node}; the save before is kept, and the next one "
                f"is tried after output.every: {entry.message}"
            )
        case "lost":
            return (
                f"the last save of the output folder failed on node {node}; what ranks wrote since the save before "
                f"is not in storage: {entry.message}"
            )
        case "conflict":
            return (
                f"several nodes wrote the same files of the output folder, and the one with the lowest rank was taken: "
                f"{_listed(entry)}; have one rank write each file, or put the rank into its name"
            )
        case "stale":
            return (
                f"rank 0 goes on on node {node} with the output folder as it was last saved; what it wrote since then "
                f"on its previous node is missing: {entry.message}"
            )
        case "elsewhere":
            return (
                f"{_count(entry.files)} written outside of the output folder stay on node {node}, and no other node "
                f"will have them: {_listed(entry)}; write to $HEADWAY_OUTPUT_DIR, or set output: {{dir: .}}"
            )


def _count(files: int) -> str:
    return "1 file" if files == 1 else f"{files:,} files"


def _listed(entry: OutputReport) -> str:
    shown = ", ".join(map(visible_line, entry.paths[:_SHOWN_PATHS]))
    more = max(entry.files, len(entry.paths)) - _SHOWN_PATHS
    return f"{shown} and {more:,} more" if entry.what == "elsewhere" and more > 0 else shown
