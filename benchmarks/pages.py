"""How soon pages are seen and how live they stay, with 1,000 jobs, 500 nodes and a hundred people who look.

    python -m benchmarks.pages --json

One API process over embedded PostgreSQL and Redis, with no scheduler: nothing but the pages is at work. `first_paint_ms` is the
first contentful paint of a signed-in Chromium, the worst of the pages of the cluster and of jobs, after one visit that warms the
process up; None where there is no Chromium. Then `viewers` follow these two pages, half of them each, while a job changes its
name on both every two seconds or so; `updates_lag_p99_s` is from a change's commit to the moment in which a viewer has it.
`api_cpu` is how many cores the API used meanwhile; the viewers, in this process, share the machine with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import httpx

from benchmarks.api import TOKEN, server
from benchmarks.arguments import benchmark_parser, run_benchmark, temporary_folder
from headway.local.ports import free_port
from headway.local.postgres import EmbeddedPostgres
from headway.local.redis import EmbeddedRedis

PAGES = ("/", "/jobs")
CHANGE_EVERY_S = 2.0
ARRIVE_S = 8.0
"""Time for all viewers to connect, and for the last change to reach them."""
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
    """As many jobs and nodes; as many jobs as there are nodes run, each on six slots of one."""
    connection = await asyncpg.connect(url)
    try:
        running = min(jobs, nodes)
        await connection.execute(_NODES, nodes)
        await connection.execute(_JOBS, jobs, running)
        await connection.execute(_GRANTS, running)
    finally:
        await connection.close()


def first_paint_ms(url: str) -> float | None:
    """The worst of the pages' first contentful paints; None without a browser."""
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
    """Follow a page, and note when each change comes. One that was overtaken by the next came with that."""
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
    """Seconds from each change to each viewer, sorted; and the cores that the process used meanwhile."""
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
        raise RuntimeError(f"{len(failed)} viewers were sent away: {failed[0]}")
    if len(seen) != viewers * changes:
        raise RuntimeError(f"{viewers * changes - len(seen)} changes did not reach their viewer")
    return sorted(at - made[number] for number, at in seen), cores


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
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
        env = {
            "HEADWAY_DATABASE_URL": database,
            "HEADWAY_REDIS_URL": redis.url(),
            "HEADWAY_STORAGE_URL": f"file://{root}/storage",
            "HEADWAY_API_TOKEN": TOKEN,
            "HEADWAY_JOIN_TOKEN": "benchmark-join-token",
            "HEADWAY_PORT": str(port),
            "HEADWAY_PRICES": "a100=2.5",
            "HEADWAY_RATE_PER_S": "0",  # one token opens all pages
        }
        url = f"http://127.0.0.1:{port}"
        subprocess.run([sys.executable, "-m", "service", "migrate"], env={**os.environ, **env}, check=True)
        with server(["-m", "service", "api"], env, f"{url}/livez") as process:
            asyncio.run(fill(database, options.jobs, options.nodes))
            paint = first_paint_ms(url)
            found, cores = asyncio.run(
                lags(
                    url,
                    database,
                    options.viewers,
                    options.changes,
                    process.pid,
                    1.0 if options.quick else ARRIVE_S,
                )
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
    print(
        json.dumps(result)
        if options.json
        else "\n".join(f"{name}: {value}" for name, value in result.items())
    )


if __name__ == "__main__":
    run_benchmark(main)
