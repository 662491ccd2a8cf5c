"""Client methods about commands beside a rank."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headway._lazy import lazy
from headway.client.calls import Calls, job_path
from headway.contract.views.jobs import JobView
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.contract import executions as models
else:
    models = lazy("headway.contract.executions")


class ExecutionCalls(Calls):
    """Methods that run a command beside a rank of a running job."""

    def execute(
        self, job: str | JobView, argv: Sequence[str], *, rank: int = 0, timeout_s: float = 3_600.0
    ) -> models.ExecutionView:
        """Run a command as the rank's user and in its confinement. Read it with `follow_execution`.

        Raises:
            ApiError: the service refuses it; the code is `illegal_transition` if the job has no ranks, `not_found` for an
                unknown rank, `too_many_commands`, or `agent_too_old`.
        """
        request = {
            "id": f"x{secrets.token_hex(16)}",  # a request that is sent again starts the command once
            "argv": list(argv),
            "rank": rank,
            "timeout_s": timeout_s,
        }
        return self._post(job_path(job, "executions"), models.ExecutionView, json=request)

    def follow_execution(self, execution: models.ExecutionView) -> Iterator[models.ExecutionEvent]:
        """Yield the output of a command as it arrives. The last event has its end.

        Raises:
            HeadwayError: the service has no output of it any more.
        """
        query = {"after": "0"}
        path = job_path(execution.job_id, "executions", execution.id)
        for received in self._http.follow(path, query):
            event = models.ExecutionEvent.model_validate_json(received.data, extra="ignore")
            query["after"] = event.cursor
            yield event
            if event.end is not None:
                return
        raise HeadwayError(
            f"The output of the command {execution.id} ends without its exit code.", "Run it again."
        )

    def cancel_execution(self, execution: models.ExecutionView) -> None:
        """Kill a command. A command that has ended stays as it is."""
        self._delete(job_path(execution.job_id, "executions", execution.id))
