"""A linear regression whose gradient noise is known exactly at every step, also as Adam divides it.

For a sample with features x of variance 1 and a target that differs by e of variance s^2 from that of the weights w*,
the gradient at w = w* + d is 2 x (x d - e). Its mean is 2 d, and element j has the second moment 4 (|d|^2 + 2 d_j^2 + s^2).
With `--linear SCALE` the loss is the mean of w x with features of mean 1 and variance SCALE, the noise scale.
The result is the average of |G|^2 and of the trace, weighted as the library weights its measurements.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from faults import Faults
from torch.utils.data import TensorDataset

import headway

FEATURES, SPREAD = 128, 1.0

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", choices=["SGD", "Adam", "AdamW"], required=True)
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--samples", type=int, required=True)
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--linear", type=float)
parser.add_argument("--penalty", action="store_true")
parser.add_argument("--scaler", action="store_true", help="train in float16 with a GradScaler")
parser.add_argument("--clip", type=float, default=0.1)
parser.add_argument("--max-local", type=int)
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

torch.manual_seed(0)
run = headway.init(timeout_s=30)
x = torch.randn(options.samples, FEATURES)
if options.linear:
    x = 1.0 + options.linear**0.5 * x
wanted = torch.ones(FEATURES)
y = x @ wanted + SPREAD * torch.randn(options.samples)
model = torch.nn.Linear(FEATURES, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = getattr(torch.optim, options.optimizer)(model.parameters(), lr=options.lr)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=100, enabled=options.scaler)
wrapped, optimizer, scaler = run.prepare(model, optimizer, scaler)
sizes = {"global_batch": options.batch, "max_local_batch": options.max_local}
loader = run.loader(TensorDataset(x, y), seed=5, **sizes)
faults = Faults(run)


def moments() -> tuple[float, float]:
    """Return |G|^2 and the trace of the covariance, of gradients as the optimizer divides them."""
    if options.linear:
        mean, second = torch.ones(FEATURES), torch.full((FEATURES,), 1.0 + options.linear)
    else:
        d = model.weight.detach()[0] - wanted
        mean, second = 2 * d, 4 * (d @ d + 2 * d * d + SPREAD**2)
    scale = torch.ones(FEATURES)
    state = optimizer.state.get(model.weight, {})
    if "exp_avg_sq" in state:
        scale = (state["exp_avg_sq"][0] / (1 - 0.999 ** float(state["step"]))).sqrt() + 1e-8
    return float((mean / scale).square().sum()), float(((second - mean**2) / scale**2).sum())


passes = 0


def count_pass(_: torch.Tensor) -> None:
    global passes
    passes += 1


model.weight.register_hook(count_pass)
true_sqr = true_var = 0.0
kept = 1.0 - 1.0 / 1000
for _ in run.epochs(options.epochs):
    for inputs, targets in loader:
        sqr, var = moments()
        true_sqr, true_var = kept * true_sqr + (1 - kept) * sqr, kept * true_var + (1 - kept) * var
        with torch.autocast("cpu", dtype=torch.float16, enabled=options.scaler):
            found = wrapped(inputs).squeeze(1)
        loss = found.mean() if options.linear else (found - targets).square().mean()
        if options.penalty:
            loss = loss + (model.weight - 1.0).square().sum()
        optimizer.zero_grad()
        faults.in_body()
        scaler.scale(loss).backward()
        if options.clip and not run.accumulating:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        scaler.step(optimizer)
        scaler.update()
result = {"scale": true_var / true_sqr, "extra_passes": passes - run.steps}
(options.result / f"noise-{run.rank}.json").write_text(json.dumps(result))
