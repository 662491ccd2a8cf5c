"""The list of a job's checkpoints on its page. It is read from storage, so it comes after the page, by itself."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from headway.contract.jobs import CheckpointPage, CheckpointView
from headway.contract.quantities import size_text
from service.console.text import NONE, iso, number, stamp


@dataclass(frozen=True, slots=True)
class Row:
    """A checkpoint."""

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
    """A page of them. `older` is the address of the next page; "" on the last one."""

    rows: tuple[Row, ...]
    uri: str
    note: str
    older: str


def checkpoint_list(job_id: str, page: CheckpointPage) -> CheckpointList:
    """What is shown of a page of the listing."""
    older = "" if page.next_cursor is None else f"?cursor={quote(page.next_cursor, safe='')}"
    return CheckpointList(
        rows=tuple(_row(one) for one in page.items),
        uri=page.uri,
        note=page.note,
        older=older and f"/jobs/{quote(job_id)}/checkpoints{older}",
    )


def _row(one: CheckpointView) -> Row:
    tone, state = ("good", "complete") if one.complete else ("warn", "not whole")
    if one.restored_next:
        tone, state = "move", "would be restored"
    return Row(
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
