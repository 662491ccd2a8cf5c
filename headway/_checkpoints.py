"""The client's call about checkpoints."""

from __future__ import annotations

from urllib.parse import quote

from headway._calls import Calls, given
from headway.contract.jobs import CheckpointPage


class CheckpointCalls(Calls):
    """Checkpoints of a job, as they lie in storage."""

    def checkpoints(self, job: str, *, limit: int = 100, cursor: str | None = None) -> CheckpointPage:
        """A page of them, newest first; the next one by its `next_cursor`. Its `note` says what cannot be listed."""
        answer = self._http.request(
            "GET",
            f"/api/v1/jobs/{quote(job, safe='')}/checkpoints",
            params=given({"limit": limit, "cursor": cursor}),
        )
        return CheckpointPage.model_validate_json(answer.content, extra="ignore")
