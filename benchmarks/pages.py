"""First paint and update latency of the console's pages, with 1,000 jobs, 500 nodes and 100 viewers.

    python -m benchmarks.pages --json

One API process runs over embedded PostgreSQL and Redis, without a scheduler, so that only the pages cause load.

`first_paint_ms`: first contentful paint of a signed-in Chromium, the slower of the cluster page and the page of jobs, after
one warm-up visit; null without Chromium. Then `viewers` follow these two pages, half of them each, while the message of a job
changes about every two seconds.
`updates_lag_p99_s`: seconds from the commit of a change until a viewer has received it.
`api_cpu`: cores that the API used meanwhile. The viewers run in this process, on the same machine.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from pathlib import Path

import asyncpg
import httpx

from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from benchmarks.servers import TOKEN, api, connected, migrate, service_env
from headway.local.ports import free_port
from headway.local.postgres import EmbeddedPostgres
from headway.local.redis import EmbeddedRedis

PAGES = ("/", "/jobs")
CHANGE_EVERY_S = 2.0
ARRIVE_S = 8.0
"""Seconds for all viewers to connect, and for the last change to reach them."""
_JOBS = """
    INSERT INTO jobs (id, project, name, spec, request_digest, state, reason, message, generation, newest_generation,
                      allocation, progress, submitted_at, state_since, started_at)
    SELECT 'j' || lpad(n::text, 6, '0'), 'default', 'train-' || n,
           jsonb_build_object('name', 'train-' || n, 'run', 'python train.py', 'elastic', '{"min": 1, "max": 8}'::jsonb),
           'digest', CASE WHEN n <= $2 THEN 'RUNNING' ELSE 'PENDING' END,
           CASE WHEN n <= $2 THEN 'PROGRESSING' ELSE 'WAITING_FOR_CAPACITY' END, 'waits or trains', 1, 1,
           CASE WHEN n <= $2 THEN jsonb_build_object('n' || lpad(n::text, 6, '0'), '[0,1,2,3,4,5]'::jsonb)
                ELSE '{}'::jsonb END,
           '{"samples": 1000, "total_samples": 100000, "samples_per_s": 512.5}',
           now() - n * interval '1 second', now(), now()
    FROM generate_series(1, $1) AS n
"""
_NODES = """
    INSERT INTO nodes (id, name, instance, address, first_port, last_port, slots, state, wanted_state, message,
                       token_sha256, agent_version, joined_at, seen_at)
    SELECT 'n' || lpad(n::text, 6, '0'), 'gpu-' || n, 'i' || n, '10.0.0.1', 20000, 20063,
           (SELECT jsonb_agg(jsonb_build_object('index', slot, 'device_kind', 'a100')) FROM generate_series(0, 7) AS slot),
           'READY', 'READY', '', 't' || n, '0', now(), now() + interval '1 day'
    FROM generate_series(1, $1) AS n
"""
_GRANTS = """
    INSERT INTO slot_grants (job_id, generation, node_id, slot, granted_at)
    SELECT 'j' || lpad(n::text, 6, '0'), 1, 'n' || lpad(n::text, 6, '0'), slot, now()
    FROM generate_series(1, $1) AS n, generate_series(0, 5) AS slot
"""


async def fill(url: str, jobs: int, nodes: int) -> None:
    """Store jobs and nodes. A job runs on six slots of each node; the other jobs wait."""
    running = min(jobs, nodes)
    async with connected(url) as connection:
        await connection.execute(_NODES, nodes)
        await connection.execute(_JOBS, jobs, running)
        await connection.execute(_GRANTS, running)


def first_paint_ms(url: str) -> float | None:
    """Return the slowest first contentful paint of the pages, or None without a browser."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        return None
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where there is a browser

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-quic"]
        )
        context = browser.new_context(extra_http_headers={"Authorization": f"Bearer {TOKEN}"})
        page, worst = context.new_page(), 0.0
        for turn in range(2):
            for path in PAGES:
                page.goto(url + path)
                paint = page.wait_for_function(
                    "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
                ).json_value()
                worst = max(worst, paint) if turn else 0.0
        browser.close()
    return round(worst, 1)


async def view(client: httpx.AsyncClient, page: str, seen: list[tuple[int, float]]) -> None:
    """Follow a page, and record in `seen` when each change arrives. A skipped change arrives with the next one."""
    newest = -1
    async with client.stream("GET", f"/live/{page}") as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: ") and "change-" in line:
                number = int(line[line.index("change-") + 7 :][:5])
                seen += [(one, time.monotonic()) for one in range(newest + 1, number + 1)]
                newest = max(newest, number)


async def lags(
    url: str, database: str, viewers: int, changes: int, pid: int, arrive_s: float
) -> tuple[list[float], float]:
    """Return the sorted seconds from each change to each viewer, and the cores that the API process used meanwhile.

    Raises:
        RuntimeError: a viewer was disconnected, or a change did not arrive.
    """
    seen: list[tuple[int, float]] = []
    connection = await asyncpg.connect(database)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, limits=limits) as client:
        tasks = [
            asyncio.create_task(view(client, ("cluster", "jobs")[number % 2], seen))
            for number in range(viewers)
        ]
        await asyncio.sleep(arrive_s)
        made: list[float] = []
        began_s, cpu_s = time.monotonic(), cpu_of(pid)
        for number in range(changes):
            await connection.execute(
                "UPDATE jobs SET message = $1 WHERE id = 'j000001'", f"change-{number:05d}"
            )
            made.append(time.monotonic())
            await asyncio.sleep(CHANGE_EVERY_S + 0.137)
        cores = (cpu_of(pid) - cpu_s) / (time.monotonic() - began_s)
        await asyncio.sleep(arrive_s)
        for task in tasks:
            task.cancel()
        failed = [
            one
            for one in await asyncio.gather(*tasks, return_exceptions=True)
            if isinstance(one, httpx.HTTPError)
        ]
    await connection.close()
    if failed:
        raise RuntimeError(f"{len(failed)} viewers were disconnected: {failed[0]}")
    if len(seen) != viewers * changes:
        raise RuntimeError(f"{viewers * changes - len(seen)} changes did not reach their viewer")
    return sorted(at - made[number] for number, at in seen), cores


def cpu_of(pid: int) -> float:
    """Return the processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = benchmark_parser(__doc__, quick="a few jobs, nodes and viewers")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--viewers", type=int, default=100)
    parser.add_argument("--changes", type=int, default=15)
    options = parser.parse_args()
    if options.quick:
        options.jobs, options.nodes, options.viewers, options.changes = 20, 10, 4, 1
    with (
        temporary_folder() as root,
        EmbeddedPostgres(root / "postgres", durable=False) as postgres,
        EmbeddedRedis(root / "redis") as redis,
    ):
        port, database = free_port(), postgres.url()
        env = service_env(root, postgres, redis, HEADWAY_PRICES="a100=2.5")
        url = f"http://127.0.0.1:{port}"
        migrate(env)
        with api(env, port) as process:
            asyncio.run(fill(database, options.jobs, options.nodes))
            paint = first_paint_ms(url)
            arrive_s = 1.0 if options.quick else ARRIVE_S
            found, cores = asyncio.run(
                lags(url, database, options.viewers, options.changes, process.pid, arrive_s)
            )
    result = {
        "first_paint_ms": paint,
        "viewers": options.viewers,
        "updates_lag_p99_s": round(found[int(0.99 * len(found))], 3),
        "updates_lag_median_s": round(found[len(found) // 2], 3),
        "api_cpu": round(cores, 3),
        "jobs": options.jobs,
        "nodes": options.nodes,
    }
    show(result, options)


if __name__ == "__main__":
    run_benchmark(main)
