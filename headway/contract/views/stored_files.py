"""Views of what a job keeps in storage: checkpoints, and files of the output folder."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from headway.contract.output import FilePath
from headway.contract.views.jobs import Page


class CheckpointView(BaseModel):
    """A stored checkpoint.

    `samples_in_epoch` is its position in the epoch. `samples` counts committed samples since the job began; only the
    manifest has that count, so it is None without a readable manifest.
    """

    name: str
    generation: int
    epoch: int
    samples_in_epoch: int
    samples: int | None
    saved_at: datetime | None
    """Time of its manifest, or, without one, of its newest object; None if it was deleted meanwhile."""
    size_bytes: int
    """Size of the stored objects."""
    complete: bool
    """True if it can be loaded: its manifest is valid, and all parts have the sizes stated there."""
    problem: str = ""
    """Description of the fault of an incomplete checkpoint."""
    restored_next: bool = False
    """True for the checkpoint from which the job would restart if it lost all of its ranks now."""


class CheckpointPage(Page[CheckpointView]):
    """Checkpoints of a job, newest first. `uri` is their storage location; `note` says what the list cannot show."""

    uri: str
    note: str = ""


class OutputFileView(BaseModel):
    """A stored file of a job's output folder. `generation` saved it last. `holes` are ranges `[first, end)` of parts of zeros."""

    path: FilePath
    kind: Literal["file", "folder", "link"]
    size_bytes: int
    mode: int
    """Permission bits."""
    mtime_ns: int
    """Modification time in nanoseconds of Unix time; 0 for folders and links."""
    generation: int
    parts: int
    """Number of parts in which the file is downloaded."""
    target: str = ""
    """Target of a link."""
    holes: list[tuple[int, int]] = Field(default_factory=list)


class OutputPage(Page[OutputFileView]):
    """Files of a job's output folder, by path, stored at `uri`. `note` says what the list cannot show."""

    uri: str
    saved_at: datetime | None = None
    """Time of the last save by any node; None while nothing is saved."""
    note: str = ""
