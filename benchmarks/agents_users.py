"""Simulated users of the API: they request listings, descriptions and explanations at a steady rate."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.agents_host import quantile
from benchmarks.agents_wire import Connection

CONNECTIONS = 32
LISTINGS = (
    "/api/v1/jobs?limit=100",
    "/api/v1/jobs?live=true&limit=100",
    "/api/v1/jobs?state=RUNNING&limit=100",
    "/api/v1/jobs?state=FAILED&limit=100",
    "/api/v1/jobs?project=default&limit=100",
    "/api/v1/jobs?name=past-77",
)


@dataclass
class Reads:
    """Latencies in seconds by kind of request, and the requests that failed."""

    took_s: dict[str, list[float]] = field(default_factory=dict)
    rejected: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def p99_s(self, *kinds: str) -> float | None:
        """Return the p99 latency of these kinds, or of all kinds if none is named."""
        wanted = kinds or tuple(self.took_s)
        return quantile([one for kind in wanted for one in self.took_s.get(kind, [])], 0.99)


class Users:
    """Users who read about live and finished jobs. `past` is the number of finished ones."""

    def __init__(self, port: int, token: str, *, past: int) -> None:
        self._token = token
        self._past = past
        self._live: list[str] = []
        self._cursor: str | None = None
        self._rng = random.Random(3)
        self._idle = asyncio.Queue[Connection]()
        for _ in range(CONNECTIONS):
            self._idle.put_nowait(Connection(port))

    async def read(self, seconds: float, per_s: float) -> Reads:
        """Send `per_s` requests a second for `seconds`, regardless of the latencies."""
        reads, began_s = Reads(), time.monotonic()
        tasks = []
        for number in range(round(seconds * per_s)):
            await asyncio.sleep(max(0.0, began_s + number / per_s - time.monotonic()))
            kind, path = self._next()
            tasks.append(asyncio.create_task(self._ask(reads, kind, path)))
        await asyncio.gather(*tasks)
        return reads

    def _next(self) -> tuple[str, str]:
        kind = self._rng.choice(("list", "list", "walk", "describe", "describe", "explain"))
        if kind == "list":
            return kind, self._rng.choice(LISTINGS)
        if kind == "walk" and self._cursor is not None:
            return kind, f"/api/v1/jobs?limit=100&cursor={self._cursor}"
        past = f"jhistory{self._rng.randint(1, self._past):012d}"
        job = self._rng.choice(self._live) if self._live and self._rng.random() < 0.5 else past
        if kind == "explain":
            return kind, f"/api/v1/jobs/{job}/explain"
        return "describe", f"/api/v1/jobs/{job}"

    async def _ask(self, reads: Reads, kind: str, path: str) -> None:
        began_s = time.monotonic()
        connection = await self._idle.get()
        try:
            answer = await connection.send("GET", path, self._token)
        except (OSError, EOFError):
            reads.failures[f"{kind}: no answer"] += 1
            return
        finally:
            self._idle.put_nowait(connection)
        if answer.status == 429:
            reads.rejected += 1
        elif answer.status != 200:
            reads.failures[f"{kind}: {answer.status} {answer.body[:200]!r}"] += 1
        else:
            reads.took_s.setdefault(kind, []).append(time.monotonic() - began_s)
            if kind in {"list", "walk"}:
                self._remember(path, json.loads(answer.body))

    def _remember(self, path: str, page: dict[str, object]) -> None:
        """Store the cursor of the next page, and the live jobs."""
        items, cursor = page["items"], page["next_cursor"]
        assert isinstance(items, list)
        if "live=true" in path:
            self._live = [one["id"] for one in items]
        if "=" not in path.replace("limit=", "").replace("cursor=", ""):
            self._cursor = cursor if isinstance(cursor, str) else None
