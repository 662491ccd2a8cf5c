"""One simulated agent: it sends reports, reads commands, and makes up the messages of its ranks."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from benchmarks.agents_wire import Answer, Connection, Stream
from headway.contract.agents import COMMANDS, JoinReply, ReportReply, RunCommand, StopCommand

PROGRESS_EVERY_S = 0.5
"""Seconds between two progress messages of rank 0, as in the library."""
LOG_EVERY_S = 10.0
BLOCK_S = 5.0
_LOG_BYTES = 4096
_START_S = (0.3, 1.5)
_STOP_S = (0.2, 1.0)


@dataclass
class Load:
    """Measurements since the last request of the driver."""

    lags_s: list[float] = field(default_factory=list)
    """Seconds from when a report was due until its answer."""
    reports_s: list[float] = field(default_factory=list)
    """Seconds from sending an accepted report until its answer."""
    submits_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    """Seconds by which this process itself sent reports late."""
    rejected: int = 0
    with_entries: int = 0
    """Reports that had entries or acknowledgements."""
    failures: Counter[str] = field(default_factory=Counter)

    def figures(self, seconds: float) -> dict[str, Any]:
        """Return the figures of a period of this length, for JSON."""
        return {
            "reports_per_s": round(len(self.lags_s) / seconds, 1),
            "news_per_s": round(self.with_entries / seconds, 1),
            "lag_p50_s": quantile(self.lags_s, 0.5),
            "lag_p99_s": quantile(self.lags_s, 0.99),
            "lag_worst_s": quantile(self.lags_s, 1.0),
            "report_p50_s": quantile(self.reports_s, 0.5),
            "report_p99_s": quantile(self.reports_s, 0.99),
            "submit_p99_s": quantile(self.submits_s, 0.99),
            "simulator_late_p99_s": quantile(self.late_s, 0.99),
            "rejected": self.rejected,
            "failures": dict(self.failures),
        }


def quantile(values: list[float], share: float) -> float | None:
    """Return the quantile of the values by nearest rank, or None without values."""
    if not values:
        return None
    return round(sorted(values)[max(0, math.ceil(share * len(values)) - 1)], 4)


@dataclass
class Ranks:
    """Ranks of one generation of a job, by the agents that have started them."""

    nodes: int
    started: set[Agent] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        """True if every node has started its ranks."""
        return len(self.started) == self.nodes


class Shared:
    """State that the agents of a process share."""

    def __init__(self, ports: Sequence[int], join_token: str, load: Load) -> None:
        self.ports = ports
        """Ports of the APIs, which agents use in turn."""
        self.join_token = join_token
        self.load = load
        self.pace = 1.0
        self.ends_per_s = 0
        self.ranks: dict[tuple[str, int], Ranks] = {}
        self.samples: dict[str, int] = {}
        """Samples that each job has trained on, by job id."""
        self.background = set[asyncio.Task[None]]()

    def started(self, run: RunCommand, agent: Agent) -> None:
        """Record that the ranks of a run on this agent have started."""
        self.ranks.setdefault((run.job_id, run.generation), Ranks(run.node_count)).started.add(agent)

    def end(self, which: tuple[str, int]) -> None:
        """End every rank of a generation as completed."""
        for agent in self.ranks.pop(which).started:
            agent.finish(which)


class Agent:
    """Simulated agent with one slot."""

    def __init__(self, shared: Shared, number: int) -> None:
        self._shared = shared
        self._rng = random.Random(number)
        self._name = f"sim-{number:05d}"
        port = shared.ports[number % len(shared.ports)]
        self._http = Connection(port)
        self._logs = Connection(port)
        self.joined: asyncio.Future[JoinReply] = asyncio.get_running_loop().create_future()
        self._paced_s: float | None = None
        self._runs: dict[tuple[str, int], RunCommand] = {}
        self._entries: list[dict[str, Any]] = []
        self._acknowledged: list[str] = []
        self._seen = set[str]()
        self._sequence = 0
        self._urgent_since_s = math.inf
        self._progress_s = 0.0
        self._logged_s = 0.0
        self._log_bytes = 0
        self._inventory_due_s = 0.0
        self._wake = asyncio.Event()

    async def report(self) -> None:
        """Join, then send reports without end."""
        while not self.joined.done():
            await self._join()
        node = self.joined.result()
        due_s = time.monotonic() + self._rng.uniform(0, node.report_every_s)
        while True:
            due_s = await self._until_due(due_s)
            self._shared.load.late_s.append(time.monotonic() - due_s)
            while not await self._send(node, due_s):
                pass
            due_s = time.monotonic() + self._every_s(node) / self._shared.pace
            self._ship_logs(node)

    def _every_s(self, node: JoinReply) -> float:
        """Return the seconds between reports: those of the last answer, else `PROGRESS_EVERY_S` if a rank 0 runs here."""
        if self._paced_s is not None:
            return self._paced_s
        return PROGRESS_EVERY_S if self._leads() else node.report_every_s

    def _leads(self) -> list[RunCommand]:
        return [run for run in self._runs.values() if run.node_rank == 0]

    async def _until_due(self, due_s: float) -> float:
        """Wait for the regular report or an urgent entry, and return the time at which the report was due."""
        self._wake.clear()
        if self._urgent_since_s is math.inf:
            left_s = due_s - time.monotonic()
            if left_s > 0:
                try:
                    async with asyncio.timeout(left_s):
                        await self._wake.wait()
                except TimeoutError:
                    return due_s
        due_s, self._urgent_since_s = min(due_s, self._urgent_since_s), math.inf
        return due_s

    async def _join(self) -> None:
        body = {
            "name": self._name,
            "instance": f"instance-{self._name}",
            "address": "127.0.0.1",
            "first_port": 20_000,
            "last_port": 29_999,
            "slots": self._slots(),
            "agent_version": "0.0.0",
        }
        try:
            answer = await self._http.send(
                "POST", "/api/v1/agents", self._shared.join_token, json.dumps(body).encode()
            )
        except (OSError, EOFError):
            await self._failed("join: no answer")
            return
        if answer.status == 201:
            self.joined.set_result(JoinReply.model_validate_json(answer.body))
        else:
            await self._refused("join", answer)

    def _slots(self) -> list[dict[str, Any]]:
        return [{"index": 0, "device_kind": "cpu"}]

    async def _send(self, node: JoinReply, due_s: float) -> bool:
        """Send one report, and return True if it was accepted."""
        self._add_progress()
        entries, acknowledged = list(self._entries), list(self._acknowledged)
        now_s = time.monotonic()
        with_inventory = now_s >= self._inventory_due_s
        body: dict[str, Any] = {"instance": f"instance-{self._name}"}
        if entries:
            body["entries"] = entries
        if acknowledged:
            body["acknowledged"] = acknowledged
        if self._runs:
            body["holding"] = [{"job_id": job, "generation": number} for job, number in self._runs]
        if with_inventory:
            body["slots"] = self._slots()
        path = f"/api/v1/agents/{node.node_id}/reports"
        try:
            answer = await self._http.send("POST", path, node.node_token, json.dumps(body).encode())
        except (OSError, EOFError):
            await self._failed("report: no answer")
            return False
        if answer.status != 200:
            await self._refused("report", answer)
            return False
        answered_s = time.monotonic()
        self._shared.load.lags_s.append(answered_s - due_s)
        self._shared.load.reports_s.append(answered_s - now_s)
        self._shared.load.with_entries += bool(entries or acknowledged)
        del self._entries[: len(entries)], self._acknowledged[: len(acknowledged)]
        if with_inventory:
            self._inventory_due_s = now_s + 30.0
        reply = ReportReply.model_validate_json(answer.body)
        self._paced_s = reply.report_every_s
        for one in reply.stop:
            self._end((one.job_id, one.generation), signal=9, stopped_by_agent=True)
        return True

    async def _refused(self, what: str, answer: Answer) -> None:
        if answer.status == 429:
            self._shared.load.rejected += 1
        else:
            self._shared.load.failures[f"{what}: {answer.status} {answer.body[:200]!r}"] += 1
        await asyncio.sleep(max(0.2, answer.retry_after_s) * self._rng.uniform(1.0, 1.5))

    async def _failed(self, what: str) -> None:
        self._shared.load.failures[what] += 1
        await asyncio.sleep(self._rng.uniform(0.2, 1.0))

    def _add_progress(self) -> None:
        """Queue the progress of rank 0 since the last report."""
        now_s = time.monotonic()
        count = min(20, int((now_s - self._progress_s) / PROGRESS_EVERY_S))
        if count < 1:
            return
        self._progress_s = now_s
        for run in self._leads():
            # One message, because an agent merges progress that it has not sent yet (`Outbox.take`).
            step_s = (0.02 + 0.08 / run.world_size) * self._rng.uniform(0.95, 1.05)
            steps = count * max(1, int(PROGRESS_EVERY_S / step_s))
            samples = self._shared.samples.get(run.job_id, 0) + steps * 256
            self._shared.samples[run.job_id] = samples
            self._message(
                run,
                "progress",
                epoch=0,
                samples=samples,
                total_samples=10_000_000,
                steps=steps,
                step_s_sum=steps * step_s,
                step_s_squares=steps * step_s * step_s,
                global_batch=256,
                local_batch=-(-256 // run.world_size),
                accumulation=1,
                sync_s_sum=0.1 * steps * step_s if run.world_size > 1 else 0.0,
            )

    def _message(self, run: RunCommand, kind: str, **fields: Any) -> None:
        rank = run.ranks[0].rank
        message = {
            "type": kind,
            "rank": rank,
            "generation": run.generation,
            "at_s": round(time.time(), 3),
            **fields,
        }
        self._add_entry(run, "rank_message", rank=rank, message=message)

    def _add_entry(self, about: RunCommand | StopCommand, kind: str, **fields: Any) -> None:
        self._sequence = max(self._sequence + 1, time.time_ns() // 1000)
        self._entries.append(
            {
                "kind": kind,
                "sequence": self._sequence,
                "job_id": about.job_id,
                "generation": about.generation,
                "at": datetime.now(UTC).isoformat(),
                **fields,
            }
        )

    def _urgent(self) -> None:
        """Send the queued entries without waiting for the regular report."""
        self._urgent_since_s = min(self._urgent_since_s, time.monotonic())
        self._wake.set()

    async def read_commands(self) -> None:
        """Execute the commands of the service without end."""
        node = await self.joined
        stream = Stream(node.redis_url, node.stream, BLOCK_S)
        while True:
            try:
                entries = await stream.next()
                for _, body in entries:
                    self._execute(COMMANDS.validate_json(body))
                await stream.handled([entry_id for entry_id, _ in entries])
            except (OSError, EOFError):
                stream.close()
                await self._failed("stream")

    def _execute(self, command: Any) -> None:
        self._acknowledged.append(command.command_id)
        if command.command_id not in self._seen:
            self._seen.add(command.command_id)
            loop = asyncio.get_running_loop()
            if isinstance(command, RunCommand):
                loop.call_later(self._rng.uniform(*_START_S), self._start, command)
                self._runs[command.job_id, command.generation] = command
            elif isinstance(command, StopCommand):
                wait_s = 0.0 if command.mode == "kill" else self._rng.uniform(*_STOP_S)
                loop.call_later(wait_s, self._stop, command)
        self._urgent()

    def _start(self, run: RunCommand) -> None:
        if (run.job_id, run.generation) not in self._runs:
            return
        self._shared.started(run, self)
        self._add_entry(run, "ranks_started", how="zygote")
        if run.node_rank == 0:
            self._message(run, "first_step", samples=self._shared.samples.get(run.job_id, 0))
            self._progress_s = time.monotonic()
        self._urgent()

    def _stop(self, stop: StopCommand) -> None:
        how: dict[str, Any] = {"signal": 9} if stop.mode == "kill" else {"exit_code": 143}
        for job_id, generation in list(self._runs):
            if job_id == stop.job_id and stop.oldest <= generation <= stop.generation:
                self._end((job_id, generation), stopped_by_agent=True, **how)
                return
        self._add_entry(stop, "released")
        self._urgent()

    def finish(self, which: tuple[str, int]) -> None:
        """End the ranks of one generation here as completed."""
        self._end(which, exit_code=0, completed=True)

    def _end(self, which: tuple[str, int], **how: Any) -> None:
        run = self._runs.pop(which, None)
        if run is None:
            return
        self._shared.ranks.pop(which, None)
        for one in run.ranks:
            self._add_entry(run, "rank_exited", rank=one.rank, **how)
        self._add_entry(run, "released")
        self._urgent()

    def _ship_logs(self, node: JoinReply) -> None:
        """Ship a piece of rank 0's output if it is due; reports do not wait for it."""
        leads = self._leads()
        if leads and time.monotonic() >= self._logged_s + LOG_EVERY_S:
            self._logged_s = time.monotonic()
            task = asyncio.create_task(self._ship_log(node, leads[0]))
            self._shared.background.add(task)
            task.add_done_callback(self._shared.background.discard)

    async def _ship_log(self, node: JoinReply, run: RunCommand) -> None:
        path = f"/api/v1/agents/{node.node_id}/logs/{run.job_id}/{run.generation}/0?offset={self._log_bytes}"
        try:
            answer = await self._logs.send(
                "POST", path, node.node_token, b"x" * _LOG_BYTES, "application/octet-stream"
            )
        except (OSError, EOFError):
            self._shared.load.failures["log: no answer"] += 1
            return
        if answer.status == 204:
            self._log_bytes += _LOG_BYTES
        elif answer.status != 429:
            self._shared.load.failures[f"log: {answer.status}"] += 1
