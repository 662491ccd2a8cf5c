"""Client method that lists checkpoints."""

from __future__ import annotations

from urllib.parse import quote

from headway.client.calls import Calls, given
from headway.contract.views.jobs import CheckpointPage


class CheckpointCalls(Calls):
    """Method about the checkpoints of a job in storage."""

    def checkpoints(self, job: str, *, limit: int = 100, cursor: str | None = None) -> CheckpointPage:
        """Return a page of checkpoints, newest first.

        `next_cursor` leads to the next page; `note` names what cannot be listed.
        """
        answer = self._http.request(
            "GET",
            f"/api/v1/jobs/{quote(job, safe='')}/checkpoints",
            params=given({"limit": limit, "cursor": cursor}),
        )
        return CheckpointPage.model_validate_json(answer.content, extra="ignore")
