"""Rank of a replicated network that notes the time of its steps and of the audit of replicas in them.

    python guarding.py STEPS FILE

`benchmarks.scripts` starts it. Rank 0 writes JSON to FILE: `steps`, `checks`, `all_s` from the end of the first step to that of the
last, and `audit_s`, the part of it within the audit.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import headway
from headway.train.state.audit import ReplicaAudit
from headway.train.state.guard import ReplicaGuard

WIDTH, BATCH = 512, 256

steps, file = int(sys.argv[1]), Path(sys.argv[2])
run = headway.init(timeout_s=120)
torch.manual_seed(3)
inputs = torch.randn(10 * BATCH, WIDTH)
network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
model, optimizer = run.prepare(network, torch.optim.AdamW(network.parameters(), lr=1e-3))
data = run.indices(len(inputs), global_batch=BATCH, seed=7)
at_boundary, differing = ReplicaAudit.at_boundary, ReplicaGuard.differing
spent_s, checks = 0.0, 0


def timed(*arguments: Any, **keywords: Any) -> None:
    global spent_s
    began_s = time.perf_counter()
    at_boundary(*arguments, **keywords)
    spent_s += time.perf_counter() - began_s


def counted(*arguments: Any, **keywords: Any) -> list[str]:
    global checks
    checks += 1
    return differing(*arguments, **keywords)


ReplicaAudit.at_boundary, ReplicaGuard.differing = timed, counted
began_s = 0.0
for _step in run.train_steps(steps):
    began_s = began_s or time.perf_counter()
    for indices in data:
        optimizer.zero_grad()
        batch = inputs[indices]
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
if run.is_main:
    times = {"steps": steps, "checks": checks, "all_s": time.perf_counter() - began_s, "audit_s": spent_s}
    file.write_text(json.dumps(times), encoding="utf-8")
