"""Inputs that take long to parse, sent to a running service: its loop never stands still for more than 0.1 s."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from benchmarks.servers import TOKEN, server
from headway.contract.standstills import Standstill
from headway.local.ports import free_port
from service.adapters.redis import RedisStandstills, connect
from tests.waiting import until

BEARER = {"Authorization": f"Bearer {TOKEN}"}
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
ZEROS = gzip.compress(bytes(1 << 20), 9)
QUERIES = {"cursor": 422, "name": 200, "state": 422, "project": 200, "after": 200, "search": 200}
"""Parameters of a listing, and the status that a long word in each causes."""


@dataclass
class Running:
    """A service in a process of its own."""

    client: httpx.AsyncClient
    redis: Redis
    folder: Path

    async def stood(self) -> int:
        """Return how often its loop has stood still."""
        answer = await self.client.get("/metrics")
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                if sample.name == "headway_loop_standstill_seconds_count":
                    return int(sample.value)
        raise AssertionError("the metric is missing")

    async def standstills(self) -> list[Standstill]:
        """Return what it shares of its standstills with other processes."""
        return list(await RedisStandstills(self.redis).since(datetime.now(UTC) - timedelta(hours=1)))

    async def shared(self) -> bool:
        """Return True once it has shared a standstill."""
        return bool(await self.standstills())


@asynccontextmanager
async def running(database_url: str, redis_url: str, folder: Path) -> AsyncIterator[Running]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    env = {
        "HEADWAY_DATABASE_URL": database_url,
        "HEADWAY_REDIS_URL": redis_url,
        "HEADWAY_STORAGE_URL": f"file://{folder}/storage",
        "HEADWAY_API_TOKEN": TOKEN,
        "HEADWAY_JOIN_TOKEN": "j" * 40,
        "HEADWAY_RATE_PER_S": "0",
        "HEADWAY_PORT": str(port),
    }
    redis = connect(redis_url)
    with server(["-m", "service", "all"], env, f"{url}/livez"):
        async with httpx.AsyncClient(base_url=url, headers=BEARER, timeout=120) as client:
            yield Running(client, redis, folder)
    await redis.aclose()


def bomb(unpacked_bytes: int) -> bytes:
    """Return a bundle of zeros in many small files that is a thousandth of its content.

    The header of one large file would tell its size, and be refused before anything is unpacked.
    """
    block = bytes(1 << 20)
    packed = []
    for number in range(unpacked_bytes // len(block)):
        member = tarfile.TarInfo(f"zeros-{number}")
        member.size = len(block)
        packed.append(gzip.compress(member.tobuf(), 1) + ZEROS)
    return b"".join(packed)


def aliases(levels: int) -> str:
    """Return the billion laughs: each list has the list before it nine times."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


JOB_FILES = {
    "braces": ("{" * 65_000, "nested more than"),
    "brackets": ("[" * 65_000, "nested more than"),
    "aliases": (aliases(12), "aliases"),
    "deep_blocks": ("\n".join(" " * n + "a:" for n in range(300)), "nested more than"),
    "many_keys": ("\n".join(f"k{n}: {n}" for n in range(5_000)), "more fields are wrong"),
    "long_pattern": ("name: job\nrun: python -V\noutput: [" + ", ".join(["'" + "*a" * 60 + "'"] * 300) + "]", "output"),
    "wide_anchors": ("\n".join(f"a{n}: &b{n} {{x: 1}}" for n in range(3_000)), "more fields are wrong"),
    "long_word": ("name: " + "a" * 60_000, "use a-z"),
    "many_quotes": ("run: '" + "''" * 30_000 + "'", "is too long"),
    "many_variables": ("name: many\nrun: python -V\nenv:\n" + "\n".join(f"  V{n}: v" for n in range(4_000)), ""),
    "long_comment": ("# " * 30_000, "is not a job file"),
}  # fmt: skip
"""Job files with what their parser says about them; empty for a valid one."""
BODIES = {
    "nested": (b"[" * 900_000, 400),
    "objects": (b'{"a":' * 150_000, 400),
    "number": (b'{"name": ' + b"9" * 900_000 + b"}", 400),
    "keys": (json.dumps({f"k{n}": n for n in range(60_000)}).encode(), 413),
    "fewer_keys": (json.dumps({f"k{n}": n for n in range(19_000)}).encode(), 422),
    "late_nul": (json.dumps({f"k{n}": "word" for n in range(18_000)} | {"run": "\x00"}).encode(), 422),
    "long_text_with_nul": (json.dumps({"name": "x" * 900_000, "run": "\x00"}).encode(), 422),
    "escapes": (b'{"name":"' + b"\\u0041" * 150_000 + b'"}', 422),
}
"""Bodies with the status of their answer: 400 from the parser of JSON, 422 from that of the fields, 413 after a count of them."""
WORDS = {
    "zeros": "0" * 6_000,
    "percent": "%" * 2_500,
    "backslashes": "\\" * 2_500,
    "stars": "*a" * 3_000,
    "spaces": " " * 6_000 + "x",
    "dots": "." * 6_000,
    "emails": "a@" * 3_000,
    "digits": "9" * 4_400,
}


@dataclass
class Sender:
    """Sender of inputs, which keeps when each was under way."""

    client: httpx.AsyncClient
    sent: list[tuple[str, float, float]] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    """Answers other than those of the parsers, such as of a check that refused the input before."""

    async def send(self, name: str, method: str, path: str, status: int, says: str = "", **what: Any) -> None:
        """Send an input that its parser answers with this status and text."""
        began_s = time.time()
        answer = await self.client.request(method, path, **what)
        self.sent.append((name, began_s, time.time()))
        if answer.status_code != status or says not in answer.text:
            self.unexpected.append(f"{name}: {answer.status_code}, not {status} {says}: {answer.text[:200]}")

    def during(self, one: Standstill) -> str:
        """Return the names of the inputs that were under way in a standstill. Its time is that of its end."""
        found = [
            name
            for name, begin_s, end_s in self.sent
            if begin_s < one.at_s and one.at_s - one.stood_s < end_s
        ]
        return ", ".join(found)


async def send_all(sender: Sender, service: Running) -> None:
    """Send every slow input."""
    send = sender.send
    for name, (text, says) in JOB_FILES.items():
        await send(f"page {name}", "POST", "/submit", 422 if says else 303, says, data={"job": text})
        long = {"name": "job", "run": text}
        await send(f"json {name}", "POST", "/api/v1/jobs", 422 if len(text) > 16_384 else 201, json=long)
    for name, (body, status) in BODIES.items():
        await send(f"body {name}", "POST", "/api/v1/jobs", status, content=body, headers=JSON)
        await send(f"budget {name}", "PUT", "/api/v1/budgets/cap", status, content=body, headers=JSON)
    fields = "&".join(f"f{n}=x" for n in range(100_000))
    await send(
        "form of many bytes", "POST", "/submit", 413, "bytes at most", content=fields.encode(), headers=FORM
    )
    await send(
        "form of many fields", "POST", "/submit", 413, "fields at most", content=b"a&" * 60_000, headers=FORM
    )
    await send("bundle", "POST", "/api/v1/bundles", 413, "unpacked", content=bomb(1_900 << 20))
    for name, word in WORDS.items():
        for parameter, status in QUERIES.items():
            await send(f"jobs?{parameter}={name}", "GET", "/api/v1/jobs", status, params={parameter: word})
        await send(f"page {name}", "GET", "/jobs", 200, params={"q": word, "name": word})
        await send(f"audit {name}", "GET", "/api/v1/audit", 422, params={"cursor": word, "actor": word})
        token = {"Authorization": f"Bearer {word.strip()}"}
        await send(f"token {name}", "GET", "/api/v1/jobs", 401, headers=token)
    await stored(service, send)


async def stored(service: Running, send: Any) -> None:
    """Read what a job has left in storage, and reports with much in them."""
    client = service.client
    made = await client.post("/api/v1/jobs", json={"name": "left", "run": "python -V"})
    job = made.json()["id"]
    for number in range(1, 4):
        folder = service.folder / "storage" / "checkpoints" / job / f"g000001-e000000-s{number:012}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").touch()
    sparse, nested, pipe = sorted((service.folder / "storage" / "checkpoints" / job).glob("*/manifest.json"))
    os.truncate(sparse, 450 << 20)
    nested.write_text("[" * 200_000, encoding="utf-8")
    pipe.unlink()
    os.mkfifo(pipe)
    await send("manifests", "GET", f"/api/v1/jobs/{job}/checkpoints", 200)
    joining = {"Authorization": f"Bearer {'j' * 40}"}
    host = {
        "name": "alpha",
        "instance": "instance-alpha",
        "address": "127.0.0.1",
        "first_port": 20000,
        "last_port": 20063,
        "slots": [{"index": index, "device_kind": "cpu"} for index in range(4096)],
        "agent_version": "0",
    }
    joined = (await client.post("/api/v1/agents", json=host, headers=joining)).json()
    node = {"Authorization": f"Bearer {joined['node_token']}"}

    async def placed() -> bool:
        return bool((await client.get(f"/api/v1/jobs/{job}")).json()["generation"])

    await until(placed)
    message = {"type": "metrics", "rank": 0, "generation": 1, "at_s": 1e9, "epoch": 0, "samples": 1}
    many = {f"metric-{n}": float(n) for n in range(3_000)}
    entries = [
        {
            "kind": "rank_message",
            "sequence": number,
            "at": datetime.now(UTC).isoformat(),
            "job_id": job,
            "generation": 1,
            "rank": 0,
            "message": {**message, "values": many},
        }
        for number in range(1, 11)
    ]
    report = {
        "instance": "instance-alpha",
        "acknowledged": [],
        "entries": entries,
        "holding": [],
        "slots": [],
    }
    await send(
        "metrics", "POST", f"/api/v1/agents/{joined['node_id']}/reports", 200, json=report, headers=node
    )
    line = b"\x1b[31m" * 12_000 + b"\n"
    log = f"/api/v1/agents/{joined['node_id']}/logs/{job}/1/0?offset=0"
    await send("log line", "POST", log, 204, content=line, headers=node)
    await send("logs", "GET", f"/api/v1/jobs/{job}/logs", 200)
    await send("page of logs", "GET", f"/jobs/{job}", 200)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_slow_inputs_never_make_the_loop_stand_still(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    async with running(database_url, redis_url, tmp_path) as service:
        sender = Sender(service.client)
        await send_all(sender, service)
        assert not sender.unexpected, "\n".join(sender.unexpected)
        await asyncio.gather(*(service.client.get("/livez") for _ in range(3)))
        if await service.stood():
            await until(service.shared)
        slow = [
            f"{one.stood_s} s during {sender.during(one)}: {' < '.join(one.stack[::-1][:8])}"
            for one in await service.standstills()
        ]
        assert not slow, "\n".join(slow)
