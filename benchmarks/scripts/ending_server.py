"""Start ranks by forks with torch loaded, and write how they ended.

    ending_server.py

`benchmarks.endings` writes one training per line to its stdin, as JSON: `program` with its arguments, the environment of each
rank, their log, whether the launcher's program runs them (`launched`), and the seconds after which they hang. The answer is a
line with their exit codes: negative for a signal, null for one that hung.
"""

import json
import os
import runpy
import signal
import sys
import time
from typing import Any

import torch
import torch._dynamo
import torch.distributed._functional_collectives
import torch.distributed.checkpoint
from torch.distributed import fsdp  # noqa: F401

import headway.train
import headway.train.checkpoint.sharded
import headway.train.sharding.resharder  # noqa: F401
from worker_agent.launcher import program
from worker_agent.launcher.preload import fresh_seeds

_POLL_S = 0.02


def become(order: dict[str, Any], rank: int) -> dict[str, Any]:
    """Give this process the output and the environment of the rank."""
    output = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for file, number in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(file, number)
    os.setsid()
    os.environ.clear()
    os.environ.update(order["environments"][rank])
    torch.set_num_threads(1)
    fresh_seeds()
    return order


def codes_of(pids: list[int], within_s: float) -> list[int | None]:
    """Wait for the ranks, and kill those that do not end in time."""
    codes: dict[int, int | None] = {}
    until_s = time.monotonic() + within_s
    while len(codes) < len(pids):
        late = time.monotonic() > until_s
        for pid in [one for one in pids if one not in codes]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
            elif late:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                codes[pid] = None
        time.sleep(_POLL_S)
    return [codes[pid] for pid in pids]


def serve() -> dict[str, Any]:
    """Start ranks until the input ends; return in a rank only, with its order."""
    for line in sys.stdin:
        order = json.loads(line)
        pids = []
        for rank in range(len(order["environments"])):
            pid = os.fork()
            if not pid:
                return become(order, rank)
            pids.append(pid)
        print(json.dumps(codes_of(pids, order["within_s"])), flush=True)
    sys.exit()


mine = serve()
name, *arguments = mine["program"]
if mine["launched"]:
    program.run(name, arguments, is_module=False)
sys.argv = [name, *arguments]
runpy.run_path(name, run_name="__main__")  # and the interpreter ends as any other
