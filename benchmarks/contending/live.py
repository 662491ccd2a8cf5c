"""Run a stream on a live cluster of this machine, and read the history that the service recorded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import asyncpg

from benchmarks.cluster import POLL_S, warm_cluster
from benchmarks.contending.history import Happened, Held, Past
from benchmarks.contending.ideal import FluidJob, ideal_ends
from benchmarks.contending.streams import Pin, Planned, Stream
from benchmarks.servers import connected
from headway.client.client import Client
from headway.contract.views.jobs import TERMINAL_STATES, JobState, JobView
from headway.local.postgres import EmbeddedPostgres

SCRIPT = Path(__file__).parents[1] / "scripts" / "sharing.py"
_WARM_UP = Stream(name="warm-up", jobs=(Planned(name="warm-up", at_s=0.0, work_s=2.0),))
_GRANTS = "SELECT slot, job_id, granted_at, released_at FROM slot_grants ORDER BY granted_at, slot"


@dataclass(frozen=True, slots=True)
class PlayedStream:
    """Finished stream: the histories of its jobs, the slots that they held, and their completion times in the ideal."""

    stream: Stream
    pasts: tuple[Past, ...]
    held: tuple[Held, ...]
    ideal_s: tuple[float, ...]


class Halted(RuntimeError):
    """Raised when the run of a stream was asked to stop."""


def play(stream: Stream, folder: Path, halt: threading.Event) -> PlayedStream:
    """Run the stream on one node until all of its jobs have ended. Jobs that take too long are cancelled.

    Raises:
        RuntimeError: a job failed.
        Halted: `halt` was set.
    """
    with warm_cluster(folder, stream.slots, _WARM_UP.spec(_WARM_UP.jobs[0], str(SCRIPT))) as client:
        began_s = time.monotonic()
        ids = _do_all(client, stream, began_s, halt)
        views = [_until_ended(client, job, stream, began_s, halt) for job in ids]
        grants = asyncio.run(_grants(EmbeddedPostgres(folder / "postgres").url()))
        zero_at = views[0].submitted_at
        pasts = tuple(
            _past(client, view, stream.work_s(planned), zero_at)
            for view, planned in zip(views, stream.jobs, strict=True)
        )
    names = {view.id: view.name for view in views}
    end_s = max(past.finished_s for past in pasts)
    held = tuple(
        Held(
            slot,
            names[job],
            _since(granted_at, zero_at),
            _since(released_at, zero_at) if released_at is not None else end_s,
        )
        for slot, job, granted_at, released_at in grants
        if job in names
    )
    ends = ideal_ends(
        [fluid(past, planned, stream) for past, planned in zip(pasts, stream.jobs, strict=True)], stream.slots
    )
    ideal_s = tuple(end - past.submitted_s for end, past in zip(ends, pasts, strict=True))
    return PlayedStream(stream, pasts, held, ideal_s)


def fluid(past: Past, planned: Planned, stream: Stream) -> FluidJob:
    """Return the job for the ideal, with the real times of its submit and of its pinned sizes."""
    pins = [(one.at_s, one.data["slots"]) for one in past.events if one.kind == "resize_requested"]
    return FluidJob(
        submit_s=past.submitted_s,
        work_s=past.work_s,
        part=planned.part,
        minimum=past.minimum,
        maximum=planned.maximum or stream.slots,
        pins=tuple(pins),
    )


def _do_all(client: Client, stream: Stream, began_s: float, halt: threading.Event) -> list[str]:
    """Submit and pin jobs at the times of the stream, and return the job ids in the stream's order."""
    ids: dict[str, str] = {}
    todo: list[Planned | Pin] = sorted([*stream.jobs, *stream.pins], key=lambda one: one.at_s)
    for one in todo:
        if halt.wait(max(0.0, began_s + one.at_s - time.monotonic())):
            raise Halted(stream.name)
        if isinstance(one, Pin):
            client.resize(ids[one.name], one.slots)
        else:
            ids[one.name] = _submit(client, stream, one)
    return [ids[job.name] for job in stream.jobs]


def _submit(client: Client, stream: Stream, job: Planned) -> str:
    return client.submit(stream.spec(job, str(SCRIPT))).id


def _until_ended(client: Client, job: str, stream: Stream, began_s: float, halt: threading.Event) -> JobView:
    cancelled = False
    while (view := client.job(job)).state not in TERMINAL_STATES:
        if not cancelled and time.monotonic() > began_s + stream.patience_s:
            client.cancel(job, force=True)
            cancelled = True
        if halt.wait(POLL_S):
            raise Halted(stream.name)
    if view.state is JobState.FAILED:
        raise RuntimeError(f"{view.name} is {view.state}: {view.message}")
    return view


def _past(client: Client, view: JobView, work_s: float, zero_at: datetime) -> Past:
    assert view.finished_at is not None, "the job has ended"
    return Past(
        name=view.name,
        minimum=view.spec.elastic.min,
        priority=view.spec.priority,
        work_s=work_s,
        submitted_s=_since(view.submitted_at, zero_at),
        finished_s=_since(view.finished_at, zero_at),
        succeeded=view.state is JobState.SUCCEEDED,
        events=tuple(
            Happened(_since(event.at, zero_at), event.kind, event.reason, event.message, event.data)
            for event in client.events(view.id)
        ),
    )


async def _grants(url: str) -> Sequence[asyncpg.Record]:
    """Return every grant of a slot: the slot, its job, and the times of grant and release."""
    async with connected(url) as connection:
        rows: Sequence[asyncpg.Record] = await connection.fetch(_GRANTS)
    return rows


def _since(at: datetime, zero_at: datetime) -> float:
    return (at - zero_at).total_seconds()
