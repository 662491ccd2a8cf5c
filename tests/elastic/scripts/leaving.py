"""A script of which one rank leaves its training loop by `break` after `--leaves` steps, and all others after `--all`.

With `--inner` they leave the loop over the data, in the second epoch: by `break` before the backward pass of the batch of these numbers.
"""

from __future__ import annotations

import argparse

import torch

import headway

parser = argparse.ArgumentParser()
parser.add_argument("--leaves", type=int, required=True)
parser.add_argument("--all", type=int, required=True)
parser.add_argument("--inner", action="store_true")
parser.add_argument(
    "--buffers", action="store_true", help="a model with buffers, which ranks exchange in the forward pass"
)
options = parser.parse_args()
run = headway.init(timeout_s=60)
net = torch.nn.Linear(4, 1)
if options.buffers:
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), net)
model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
inputs = torch.randn(60, 4)
batches = run.loader(inputs, global_batch=12, seed=7) if options.inner else ()
data = run.indices(60, global_batch=12, seed=7) if not options.inner else ()
leaves = options.leaves if run.rank == 1 else options.all
for epoch in run.epochs(3) if options.inner else ():
    for number, batch in enumerate(batches):
        if epoch == 1 and number == leaves:
            break
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
for step in run.train_steps(10) if not options.inner else ():
    for indices in data:
        model(inputs[indices]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if step + 1 == leaves:
        break
