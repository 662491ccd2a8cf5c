"""A regression whose script uses one more part of torch, by `--kind`, as scripts from elsewhere do."""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path
from typing import Any

import torch
from faults import Faults
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.checkpoint import checkpoint

import headway
from headway.train.host.connections import connections

parser = argparse.ArgumentParser()
parser.add_argument("--kind", required=True)
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()
kind = options.kind
STEPS, CHANGE_AT = 18, 5


class Net(nn.Module):
    """Three layers, of which one may be recomputed in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 1)
        self.late: Any = None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(rows))
        if kind == "checkpointing":
            hidden = checkpoint(lambda it: torch.tanh(self.second(it)), hidden, use_reentrant=False)
        else:
            hidden = torch.tanh(self.second(hidden))
        if self.late is not None:
            hidden = hidden + self.late(hidden)
        result: torch.Tensor = self.head(hidden)
        return result


class Game(nn.Module):
    """A generator and a discriminator, whose losses a script sums or passes back one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.makes, self.judges = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, rows: torch.Tensor, real: torch.Tensor | None) -> torch.Tensor:
        made = self.makes(rows)
        if real is None:
            return (self.judges(made) - 1).square().mean()
        return self.judges(made.detach()).square().mean() + (self.judges(real) - 1).square().mean()


class Lookahead:
    """An optimizer around another, as packages write it: no subclass of torch's, with a state of its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.count = inner, 0
        self.param_groups = inner.param_groups
        self.slow = [one.detach().clone() for group in inner.param_groups for one in group["params"]]

    def step(self) -> None:
        self.inner.step()
        self.count += 1
        if self.count % 4 == 0:
            fast = [one for group in self.inner.param_groups for one in group["params"]]
            with torch.no_grad():
                for mine, one in zip(self.slow, fast, strict=True):
                    mine.lerp_(one, 0.5)
                    one.copy_(mine)

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "slow": self.slow}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        for mine, its in zip(self.slow, state["slow"], strict=True):
            mine.copy_(its)


def clamp(parameter: torch.Tensor) -> None:
    """Clamp the gradient of each pass, which is not linear."""
    assert parameter.grad is not None
    parameter.grad.clamp_(-0.1, 0.1)


run = headway.init(timeout_s=60)
torch.manual_seed(3)
inputs = torch.randn(60, 4, dtype=torch.float64)
game = "game" in kind
net: Any = (Game() if game else Net()).double()
rate: Any = torch.tensor(0.05, dtype=torch.float64) if kind == "tensor rate" else 0.05
trained = net.judges if game else net
plain: Any = torch.optim.Adam(trained.parameters(), lr=rate, foreach=False)
more: list[Any] = []
if game:
    more = [torch.optim.Adam(net.makes.parameters(), lr=rate, foreach=False)]
if kind == "hook":
    net.head.weight.register_post_accumulate_grad_hook(clamp)
if kind == "swa":
    average = AveragedModel(net, use_buffers=False)
    more = [average, SWALR(plain, swa_lr=0.01, anneal_epochs=4)]
if kind == "one cycle":
    more = [torch.optim.lr_scheduler.OneCycleLR(plain, 0.1, total_steps=STEPS + 1)]
if kind == "chained":
    first = torch.optim.lr_scheduler.LinearLR(plain, total_iters=4)
    then = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(plain, 5)
    more = [torch.optim.lr_scheduler.SequentialLR(plain, [first, then], [4])]
if kind == "lookahead":
    more = [Lookahead(plain)]
if kind == "scaler":
    more = [torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)]
model, optimizer, *more = run.prepare(net, plain, *more)
data = run.indices(60, global_batch=12, max_local_batch=12 if "turns" in kind else 4, seed=7)
faults = Faults(run)


def change() -> None:
    """Change the model as the kind says, once or whenever the process has not done so yet."""
    if kind == "parametrized":
        parametrizations.weight_norm(net.second)
        optimizer.add_param_group({"params": list(net.second.parametrizations.parameters())})
    if kind == "pruned":
        prune.l1_unstructured(net.second, "weight", 0.3)
    if kind == "tied":
        net.first.bias = net.second.bias
    if kind == "lazy":
        net.late = nn.Linear(6, 6).double()
        nn.init.constant_(net.late.weight, 0.1)
        optimizer.add_param_group({"params": list(net.late.parameters())})
    if kind == "reassigned":
        net.head.weight = nn.Parameter(torch.full((1, 6), 0.1, dtype=torch.float64))
        optimizer.param_groups[0]["params"][4] = net.head.weight
    if kind == "pool":
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # as a rank of an agent is
        ours = run._team.peers.connections
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert ours & connections() == ours
            assert not ours & pool.apply(connections)
    if kind == "moved":
        net.to(torch.float32).to(torch.float64)  # which makes new nodes for the gradients


def train_only(part: nn.Module) -> None:
    """Freeze the other part of a game for its next pass, as pix2pix and Lightning's `toggle_optimizer` do."""
    if "frozen" in kind:
        net.requires_grad_(requires_grad=False)
        part.requires_grad_()


for step in run.train_steps(STEPS):
    faults.in_body()
    if step == CHANGE_AT:
        change()
    for indices in data:
        batch = inputs[indices]
        if kind == "game after both":
            losses = model(batch, batch + 1), model(batch, None)
            for one in losses:
                one.backward()
            for each in (optimizer, more[0]):
                each.step()
                each.zero_grad()
            continue
        if game:
            train_only(net.judges)
            judged = model(batch, batch + 1)
            judged.backward()
            if "turns" in kind:
                optimizer.step()
            train_only(net.makes)
            model(batch, None).backward()
            if "turns" not in kind:
                optimizer.step()
            more[0].step()
            optimizer.zero_grad()
            more[0].zero_grad()
            continue
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        scaler = more[0] if kind == "scaler" else None
        (scaler.scale(loss) if scaler else loss).backward()
        if kind == "own clip" and not run.accumulating:
            norm = torch.cat([one.grad.flatten() for one in net.parameters() if one.grad is not None]).norm()
            for one in net.parameters():
                if one.grad is not None:
                    one.grad.mul_(min(1.0, 0.5 / float(norm)))
        if scaler:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        else:
            (more[0] if kind == "lookahead" else optimizer).step()
        optimizer.zero_grad()
        if kind == "swa":
            more[0].update_parameters(net)
        if kind in {"swa", "one cycle", "chained"}:
            more[-1].step()
whole = {**net.state_dict(), **(more[0].state_dict() if kind == "swa" else {})}
torch.save(whole, options.result / f"{run.rank}-of-{run.world_size}.pt")
