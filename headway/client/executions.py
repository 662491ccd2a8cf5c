"""Client methods about commands beside a rank."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from headway._lazy import lazy
from headway.client.calls import Calls, job_path
from headway.contract.views.jobs import JobView
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.contract import executions as models
else:
    models = lazy("headway.contract.executions")

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5
"""Bounds of the pause before a chunk of input is sent again that the command had no room for."""


class ExecutionCalls(Calls):
    """Methods that run a command beside a rank of a running job."""

    def execute(
        self,
        job: str | JobView,
        argv: Sequence[str],
        *,
        rank: int = 0,
        timeout_s: float = 3_600.0,
        stdin: bool = False,
        terminal: models.Terminal | None = None,
    ) -> models.ExecutionView:
        """Run a command as the rank's user and in its confinement. Read it with `follow_execution`.

        With `stdin`, or in a `terminal`, write its standard input with `write_execution`.

        Raises:
            ApiError: the service refuses it; the code is `illegal_transition` if the job has no ranks, `not_found` for an
                unknown rank, `too_many_commands`, or `agent_too_old`.
        """
        request = {
            "id": f"x{secrets.token_hex(16)}",  # a request that is sent again starts the command once
            "argv": list(argv),
            "rank": rank,
            "timeout_s": timeout_s,
            "stdin": stdin,
            "terminal": None if terminal is None else terminal.model_dump(),
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

    def write_execution(self, execution: models.ExecutionView) -> ExecutionWriter:
        """Return the standard input of a command that was started with `stdin` or with a `terminal`."""

        def send(chunk: models.ExecutionInput) -> models.ExecutionInputReply:
            path = job_path(execution.job_id, "executions", execution.id, "input")
            content = chunk.model_dump_json()
            headers = {"Content-Type": "application/json"}
            return self._post(path, models.ExecutionInputReply, content=content, headers=headers)

        return ExecutionWriter(send)


class ExecutionWriter:
    """Standard input of one command. Its methods return False once the command has ended. Use it in one thread at a time.

    Each waits until the command has room for more: a command that does not read holds its writer back.
    """

    def __init__(self, send: Callable[[models.ExecutionInput], models.ExecutionInputReply]) -> None:
        self._send = send
        self._sequence = 0
        self._lock = threading.Lock()
        self._over = threading.Event()

    def write(self, data: bytes) -> bool:
        """Write the bytes, in as many requests as they need."""
        most = models.MAX_INPUT_BYTES
        return all(self._put(data=data[at : at + most]) for at in range(0, len(data), most))

    def resize(self, size: models.TerminalSize) -> bool:
        """Change the size of the terminal."""
        return self._put(size=size)

    def end(self) -> bool:
        """Send the end of the input, behind which nothing is written."""
        return self._put(eof=True)

    def over(self) -> None:
        """Stop waiting in a thread that writes, because the command has ended."""
        self._over.set()

    def _put(self, **fields: object) -> bool:
        with self._lock:
            chunk = models.ExecutionInput.model_validate({"sequence": self._sequence + 1, **fields})
            pause_s = _FIRST_PAUSE_S
            while not self._over.is_set():
                reply = self._send(chunk)
                if reply.accepted:
                    self._sequence += 1
                    return True
                if reply.ended:
                    return False
                self._over.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            return False
