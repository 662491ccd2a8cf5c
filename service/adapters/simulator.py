"""What-if simulations, each in a separate process."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from headway.contract.views.simulations import SimulationRequest, SimulationResult
from service.domain.cluster.snapshot import Snapshot
from service.domain.shared.errors import SimulationEnded
from service.simulation.worker import Question, WorkerMessage
from service.usecases.ports.simulations import OnProgress, Simulator

_CHECK_EVERY_S = 1.0
"""Interval in seconds of the check that the result is still wanted."""
_LONGEST_LINE_BYTES = 1 << 28
_ERROR_TAIL_BYTES = 2000


class ProcessSimulator(Simulator):
    """Simulator in a worker process."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    async def simulate(
        self,
        snapshot: Snapshot,
        request: SimulationRequest,
        ended_samples: Mapping[str, Sequence[float]],
        wanted: OnProgress,
    ) -> SimulationResult:
        question = Question(snapshot=snapshot, request=request, ended_samples=ended_samples)
        pickled = await asyncio.to_thread(pickle.dumps, question)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "service.simulation.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE_BYTES,
            # The worker has one core; the others are for jobs and scheduling rounds.
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        errors = asyncio.create_task(_last_line(process.stderr))
        answer = _Answer()
        tasks = (
            asyncio.create_task(answer.read(process, pickled)),
            asyncio.create_task(_watch(answer, wanted)),
        )
        try:
            async with asyncio.timeout(self._limit_s):
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if answer.result is None and not answer.refused and tasks[0] in done:
                    raise SimulationEnded(
                        f"its process ended without a result: {await errors or 'it was killed'}"
                    )
        except TimeoutError:
            raise SimulationEnded(
                f"it took longer than {self._limit_s:g} s; ask for fewer seeds, policies or days"
            ) from None
        finally:
            for task in tasks:
                task.cancel()
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.gather(*tasks, errors, process.wait(), return_exceptions=True)
        if answer.result is None:
            raise SimulationEnded(answer.refused or "it was cancelled")
        return answer.result


class _Answer:
    """Messages of a worker received so far."""

    def __init__(self) -> None:
        self.done = 0.0
        self.refused = ""
        self.result: SimulationResult | None = None

    async def read(self, process: asyncio.subprocess.Process, question: bytes) -> None:
        """Send the question, and read messages until the worker closes its output."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(ConnectionError):
            process.stdin.write(question)
            await process.stdin.drain()
            process.stdin.close()
        async for text in process.stdout:
            line = WorkerMessage.model_validate_json(text)
            self.done, self.refused, self.result = line.progress, line.refused or "", line.result


async def _watch(answer: _Answer, wanted: OnProgress) -> None:
    """Return as soon as the result is no longer wanted."""
    while True:
        if not await wanted(answer.done):
            return
        await asyncio.sleep(_CHECK_EVERY_S)


async def _last_line(stream: asyncio.StreamReader | None) -> str:
    """Return the last line of a stream, at its end."""
    last = b""
    while stream is not None and (part := await stream.read(1 << 16)):
        last = (last + part)[-_ERROR_TAIL_BYTES:]
    return (last.decode(errors="replace").strip().splitlines() or [""])[-1]
