"""The list of a job's checkpoints on its page. It is read from storage, so the page loads it separately."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from headway.contract.values.quantities import size_text
from headway.contract.views.stored_files import CheckpointPage, CheckpointView
from service.console.html.text import NONE, iso, number, stamp


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A row of the list of checkpoints."""

    name: str
    at: str
    at_iso: str
    generation: str
    epoch: str
    samples: str
    size: str
    tone: str
    state: str
    problem: str


@dataclass(frozen=True, slots=True)
class CheckpointList:
    """One page of the list. `older` is the address of the next page, or "" on the last one."""

    rows: tuple[CheckpointRow, ...]
    uri: str
    note: str
    older: str


def checkpoint_list(job_id: str, page: CheckpointPage) -> CheckpointList:
    """Return the rows and links of one page of the listing."""
    older = "" if page.next_cursor is None else f"?cursor={quote(page.next_cursor, safe='')}"
    return CheckpointList(
        rows=tuple(_row(one) for one in page.items),
        uri=page.uri,
        note=page.note,
        older=older and f"/jobs/{quote(job_id)}/checkpoints{older}",
    )


def _row(one: CheckpointView) -> CheckpointRow:
    tone, state = ("good", "complete") if one.complete else ("warn", "incomplete")
    if one.restored_next:
        tone, state = "move", "would be restored"
    return CheckpointRow(
        name=one.name,
        at=NONE if one.saved_at is None else stamp(one.saved_at),
        at_iso="" if one.saved_at is None else iso(one.saved_at),
        generation=number(one.generation),
        epoch=number(one.epoch),
        samples=number(one.samples),
        size=size_text(one.size_bytes),
        tone=tone,
        state=state,
        problem=one.problem,
    )
