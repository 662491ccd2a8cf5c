"""Plain DistributedDataParallel that knows nothing of Headway, and still survives being resized.

    headway submit examples/plain_ddp.yaml --wait
    torchrun --nproc-per-node 2 examples/plain_ddp.py --checkpoint /tmp/plain.pt

All it does for that is what a script on a preemptible machine does anyway: on SIGTERM it saves, exits
with 143, and it begins from what was saved. Headway restarts it at another size with
`elastic.resize: restart`; with `never` it keeps its size.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 1500
GLOBAL_BATCH = 256
EXIT_STOPPED = 143


def default_checkpoint() -> str:
    """A file in the folder that the launcher offers, else in the current one."""
    folder = Path(urlsplit(os.environ.get("HEADWAY_CHECKPOINT_URI", ".")).path)
    return str(folder / "plain.pt")


def batch_of(step: int, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part of a step's synthetic regression data, the same whatever the number of ranks."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(GLOBAL_BATCH, 32, generator=generator)[rank::world_size]
    return x, torch.sin(x.sum(dim=1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default=default_checkpoint())
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    path = Path(arguments.checkpoint)

    stop_asked = torch.zeros(1)
    signal.signal(signal.SIGTERM, lambda *_: stop_asked.fill_(1))
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    first = 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
        print(f"rank {rank} of {world_size} goes on at step {first}", flush=True)

    loss = torch.zeros(())
    for step in range(first, arguments.steps):
        x, y = batch_of(step, rank, world_size)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        anybody_asked = stop_asked.clone()
        dist.all_reduce(anybody_asked, op=dist.ReduceOp.MAX)
        if anybody_asked:
            if rank == 0:
                path.parent.mkdir(parents=True, exist_ok=True)
                state = {
                    "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step + 1,
                }
                torch.save(state, path.with_suffix(".partial"))
                path.with_suffix(".partial").replace(path)
                print(f"saved at step {step + 1}", flush=True)
            dist.barrier()
            sys.stdout.flush()
            os._exit(EXIT_STOPPED)
    if rank == 0:
        print(f"done after {arguments.steps} steps, loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
