"""A loop that leaves out the backward pass of a batch in which the rows `--bad` are, as scripts do whose loss is not a number.

`--way`: `before` leaves the batch out before the model is called, `after` after it, `unconditional` only the backward pass, and
`scaler` as `after` with a GradScaler.
"""

from __future__ import annotations

import argparse

import torch
from faults import Faults

import headway

parser = argparse.ArgumentParser()
parser.add_argument("--way", default="after")
parser.add_argument("--bad", type=int, nargs="*", default=[])
parser.add_argument("--max-local", type=int)
parser.add_argument("--every", type=int, default=1)
options = parser.parse_args()

run = headway.init(timeout_s=120)
torch.manual_seed(1)
rows = torch.randn(48, 3, dtype=torch.float64)
rows[options.bad] = torch.nan
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.8)
scaler = torch.amp.GradScaler("cpu", enabled=options.way == "scaler", init_scale=4.0, growth_interval=3)
model, optimizer, schedule, scaler = run.prepare(model, optimizer, schedule, scaler)
loader = run.loader(range(48), global_batch=6, max_local_batch=options.max_local, seed=3, num_workers=0)
faults = Faults(run)
for _ in run.epochs(3):
    for number, batch in enumerate(loader):
        faults.in_body()
        x = rows[batch]
        if options.every == 1:
            optimizer.zero_grad()
        if options.way == "before" and not x.isfinite().all():
            continue
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / options.every
        if not loss.isfinite():
            if options.way != "unconditional":
                continue
        else:
            scaler.scale(loss).backward()
        if (number + 1) % options.every == 0:
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            if options.every > 1:
                optimizer.zero_grad()
weights = [f"{one:.9f}" for parameter in model.parameters() for one in parameter.detach().flatten().tolist()]
print(f"rank {run.rank} ends {' '.join(weights)} rate {optimizer.param_groups[0]['lr']:.6f}", flush=True)  # noqa: T201  # the test reads it
