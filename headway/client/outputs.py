"""Client methods about the checkpoints and output folders of jobs in storage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from headway.client.calls import Calls, given, job_path
from headway.contract.output import PART_BYTES
from headway.contract.views.stored_files import CheckpointPage, OutputFileView, OutputPage
from headway.errors import HeadwayError


class OutputCalls(Calls):
    """Methods about the checkpoints and output folders of jobs in storage."""

    def checkpoints(self, job: str, *, limit: int = 100, cursor: str | None = None) -> CheckpointPage:
        """Return a page of checkpoints, newest first.

        `next_cursor` leads to the next page; `note` names what cannot be listed.
        """
        return self._get(job_path(job, "checkpoints"), CheckpointPage, limit=limit, cursor=cursor)

    def output(self, job: str, *, limit: int = 100, cursor: str | None = None) -> OutputPage:
        """Return a page of the files in the output folder, sorted by path.

        `next_cursor` leads to the next page.
        """
        return self._get(job_path(job, "output"), OutputPage, limit=limit, cursor=cursor)

    def output_files(self, job: str) -> Iterator[OutputFileView]:
        """Yield every file of the output folder, sorted by path."""
        cursor: str | None = None
        while True:
            page = self.output(job, limit=500, cursor=cursor)
            yield from page.items
            if (cursor := page.next_cursor) is None:
                return

    def download_output(self, job: str, folder: Path) -> Iterator[OutputFileView]:
        """Write the output folder into `folder`, and yield each file once it is written.

        A link is created only if it leads to a file inside `folder`.

        Raises:
            HeadwayError: a file would be written outside `folder`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        root = folder.resolve()
        for one in self.output_files(job):
            path = root / one.path
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.parent.resolve().is_relative_to(root):
                raise HeadwayError(
                    f"{one.path} would be written outside {folder}, through an existing link.",
                    "Download into an empty folder.",
                )
            if one.kind == "folder":
                path.mkdir(exist_ok=True)
            elif one.kind == "link":
                if not _make_link(root, path, one.target):
                    continue
            else:
                self._download(job, one, path)
            yield one

    def _download(self, job: str, one: OutputFileView, path: Path) -> None:
        partial = path.with_name(f"{path.name}.partial")
        with partial.open("wb") as file:
            held = {part for first, end in one.holes for part in range(first, min(end, one.parts))}
            for part in range(one.parts):
                if part in held:
                    file.seek(PART_BYTES, os.SEEK_CUR)
                    continue
                params = given({"path": one.path, "part": part})
                file.write(self._http.request("GET", job_path(job, "output", "part"), params=params).content)
            if held:
                file.truncate(one.size_bytes)
        os.utime(partial, ns=(one.mtime_ns, one.mtime_ns))
        partial.chmod(one.mode | 0o600)
        partial.replace(path)


def _make_link(root: Path, path: Path, target: str) -> bool:
    """Create a symbolic link unless it leads out of `root`. Return True if it was created."""
    if not (path.parent / target).resolve().is_relative_to(root):
        return False
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    return True
