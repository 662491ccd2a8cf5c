"""Fuzzing of a running service and of the parsers of what comes from outside.

    python -m benchmarks.fuzz --minutes 10 --json

Two API processes and a scheduler run over PostgreSQL and Redis of their own. Cases are made from the API's description and from
valid examples, and sent with the tokens of the four roles, of a node, and with none: fields of HTTP requests, reports of an
agent, job files in YAML, messages of ranks, manifests of checkpoints, and archives.

`requests`: cases, of which `http` were sent to the service. `server_errors`: answers of 500 or more, missing answers, and
exceptions of a parser other than its own. `escapes`: archives that changed anything outside of their folder.
`standstills`: periods over 0.1 s in which the loop of a process stood still.

The exit code is 1 if anything was found. `--keep` names a folder for the failing cases; a file that is added to
`tests/fuzzed` becomes a regression test. The same seed gives the same cases.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from benchmarks.arguments import benchmark_parser, run_benchmark, show, temporary_folder
from benchmarks.fuzzing.cases import JOB_ID, NODE, ROLES, Case, Maker, Surface
from benchmarks.fuzzing.checks import Problem, Target, check_archive, check_parser, check_request, save
from benchmarks.servers import TOKEN, api, migrate, server, service_env
from headway.contract.manifest import CheckpointPart, Manifest
from headway.local.ports import free_port
from headway.local.postgres import EmbeddedPostgres
from headway.local.redis import EmbeddedRedis
from service.adapters.redis import RedisStandstills, connect

_ROOT = Path(__file__).parents[1]
_AT_ONCE = 12
"""Requests under way at a time: below the places of one API, so that few are refused for load."""
_SHOWN = 20
_HOST = {
    "name": "fuzzed",
    "instance": "instance-fuzzed",
    "address": "127.0.0.1",
    "first_port": 20000,
    "last_port": 20063,
    "slots": [{"index": 0, "device_kind": "cpu"}],
    "agent_version": "0",
}


@contextmanager
def running(folder: Path) -> Iterator[tuple[list[int], str]]:
    """Run a service, and yield the ports of its APIs and the URL of its Redis."""
    with ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres(folder / "postgres", durable=False))
        redis = stack.enter_context(EmbeddedRedis(folder / "redis"))
        env = service_env(folder, postgres, redis)
        migrate(env)
        ports = [free_port(), free_port()]
        for port in ports:
            stack.enter_context(api(env, port))
        listen = f"127.0.0.1:{free_port()}"
        scheduler = {**env, "HEADWAY_METRICS_LISTEN": listen}
        stack.enter_context(server(["-m", "service", "scheduler"], scheduler, f"http://{listen}/metrics"))
        yield ports, redis.url()


def prepare(port: int) -> tuple[Target, dict[str, Any]]:
    """Submit a job, join a node, create a token of each role, and return them with the API's description."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

        def post(path: str, body: Any) -> Any:
            answer = client.post(f"/api/v1/{path}", json=body, headers={"Authorization": f"Bearer {TOKEN}"})
            answer.raise_for_status()
            return answer.json()

        job = post("jobs", {"name": "fuzzed", "run": "python -V"})
        joined = post("agents", _HOST)
        tokens = {NODE: joined["node_token"]}
        for role in ROLES:
            tokens[role] = post("tokens", {"name": f"fuzz-{role}", "robot": True, "role": role})["token"]
        description = client.get("/openapi.json").json()
    return Target(port, tokens, job["id"], joined["node_id"]), description


def maker_of(seed: int, description: dict[str, Any]) -> Maker:
    """Return the maker of cases, with valid examples of the repository."""
    golden = _ROOT / "tests" / "unit" / "headway" / "contract" / "golden" / "0.1"
    messages, entries = (
        [json.loads(file.read_text(encoding="utf-8")) for file in sorted((golden / kind).glob("*.json"))]
        for kind in ("ranks", "entries")
    )
    manifest = Manifest(
        generation=1,
        epoch=2,
        samples_in_epoch=3,
        samples=4,
        parts=(CheckpointPart(key="part.safetensors", size_bytes=9, sha256="0" * 64),),
    )
    report = {
        "instance": _HOST["instance"],
        "acknowledged": [],
        "entries": [
            {**entry, "sequence": number, "at": "2026-01-01T00:00:00Z", "job_id": JOB_ID}
            for number, entry in enumerate(entries, 1)
        ],
        "holding": [{"job_id": JOB_ID, "generation": 1}],
        "slots": [],
    }
    return Maker(
        seed,
        description,
        job_files=[file.read_text(encoding="utf-8") for file in sorted((_ROOT / "examples").glob("*.yaml"))],
        rank_messages=messages,
        manifests=[json.loads(manifest.to_text())],
        report=report,
    )


class Run:
    """Execution of cases until a time, and its counts.

    Args:
        targets: the service by each of its APIs, which take turns.
        maker: the maker of cases.
        until_s: the end, by the monotonic clock.
    """

    def __init__(self, targets: Sequence[Target], maker: Maker, until_s: float) -> None:
        self._targets = targets
        self._maker = maker
        self._until_s = until_s
        self._parsers = ProcessPoolExecutor(
            1
        )  # of its own, so that a slow input does not hold up the requests
        self.cases: Counter[str] = Counter()
        self.problems: list[Problem] = []

    async def all(self) -> None:
        """Execute cases, several at a time."""
        await asyncio.gather(*(self._some(number) for number in range(_AT_ONCE)))
        self._parsers.shutdown()

    async def _some(self, number: int) -> None:
        target = self._targets[number % len(self._targets)]
        while time.monotonic() < self._until_s:
            case = self._maker.next()
            problem = await self._check(case, target)
            self.cases[case.surface] += 1
            if problem is not None:
                self.problems.append(problem)

    async def _check(self, case: Case, target: Target) -> Problem | None:
        loop = asyncio.get_running_loop()
        match case.surface:
            case Surface.HTTP | Surface.REPORTS:
                return await check_request(case, target)
            case Surface.ARCHIVES:
                return await loop.run_in_executor(self._parsers, check_archive, case)
        return await loop.run_in_executor(self._parsers, check_parser, case)


def main() -> None:
    parser = benchmark_parser(__doc__, quick="two seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--keep", type=Path, help="folder for the failing cases")
    arguments = parser.parse_args()
    minutes = 2 / 60 if arguments.quick else arguments.minutes
    with temporary_folder() as folder, running(folder) as (ports, redis_url):
        target, description = prepare(ports[0])
        targets = [replace(target, port=port) for port in ports]
        run = Run(targets, maker_of(arguments.seed, description), time.monotonic() + 60 * minutes)
        asyncio.run(run.all())
        stood = asyncio.run(_standstills(redis_url))
    if arguments.keep is not None:
        for number, problem in enumerate(run.problems):
            save(problem, arguments.keep, number)
    escapes = sum(problem.escape for problem in run.problems)
    result = {
        "requests": run.cases.total(),
        "server_errors": len(run.problems) - escapes,
        "escapes": escapes,
        "standstills": len(stood),
        "by_surface": dict(sorted(run.cases.items())),
        "found": [f"{one.case.method} {one.case.path} {one.found}"[:400] for one in run.problems[:_SHOWN]],
        "stacks": stood[:_SHOWN],
    }
    show(result, arguments)
    sys.exit(int(bool(run.problems)))


async def _standstills(redis_url: str) -> list[str]:
    """Return the standstills that the processes of the service have shared."""
    redis = connect(redis_url)
    try:
        found = await RedisStandstills(redis).since(datetime.now(UTC) - timedelta(hours=24))
    finally:
        await redis.aclose()
    return [f"{one.process}: {one.stood_s} s: {' < '.join(one.stack[::-1][:6])}" for one in found]


if __name__ == "__main__":
    run_benchmark(main)
