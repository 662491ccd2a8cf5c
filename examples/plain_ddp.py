"""Plain DistributedDataParallel without Headway, which can still be resized.

    torchrun --nproc-per-node 2 examples/plain_ddp.py --checkpoint /tmp/plain.pt
    headway submit examples/plain_ddp.yaml --wait

On SIGTERM all processes finish the same step, save the state, and exit with 143. When it is started again, at any size, it
continues from there. `elastic.resize: restart` needs nothing else. It learns scikit-learn's handwritten digits.
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

GLOBAL_BATCH = 128
TEST_DIGITS = 297
EXIT_STOPPED = 143


def default_checkpoint() -> Path:
    """Return a path in the job's checkpoint folder if there is one, else in the working folder."""
    uri = os.environ.get("HEADWAY_CHECKPOINT_URI", "")
    return Path(uri.removeprefix("file://") if uri.startswith("file://") else ".") / "plain_ddp.pt"


def batch(step: int, samples: int) -> torch.Tensor:
    """Return the indices of the samples of a step (GLOBAL_BATCH,), the same at any number of processes."""
    steps_per_epoch = samples // GLOBAL_BATCH
    epoch, place = divmod(step, steps_per_epoch)
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(epoch))
    return order[place * GLOBAL_BATCH : (place + 1) * GLOBAL_BATCH]


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Save the state atomically, by a temporary file and a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, path.with_suffix(".partial"))
    path.with_suffix(".partial").replace(path)


def leave(code: int) -> NoReturn:
    """End the process at once, because a normal exit with torch's threads aborts or hangs in one of some hundred runs."""
    sys.stdout.flush()
    os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--checkpoint", type=Path, default=default_checkpoint())
    options = parser.parse_args()

    stop = torch.zeros(1)
    signal.signal(signal.SIGTERM, lambda *_: stop.fill_(1))
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    train_x, train_y = images[:-TEST_DIGITS], labels[:-TEST_DIGITS]
    test_x, test_y = images[-TEST_DIGITS:], labels[-TEST_DIGITS:]

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    first_step = 0
    if options.checkpoint.exists():
        state = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step = state["step"]
    replicas = DistributedDataParallel(model)
    if rank == 0:
        print(f"training on {world_size} processes from step {first_step}", flush=True)

    for step in range(first_step, options.steps):
        mine = batch(step, len(train_x))[rank::world_size]
        loss = cross_entropy(replicas(train_x[mine]), train_y[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 100 == 0:
            print(f"step {step}  loss {loss.item():.4f}", flush=True)

        anyone = stop.clone()
        dist.all_reduce(anyone, op=dist.ReduceOp.MAX)  # all must leave after the same step
        if anyone:
            if rank == 0:
                save(options.checkpoint, model, optimizer, step + 1)
                print(f"stopped and saved after step {step}", flush=True)
            dist.barrier()
            leave(EXIT_STOPPED)

    if rank == 0:
        save(options.checkpoint, model, optimizer, options.steps)
        right = (model(test_x).argmax(dim=1) == test_y).float().mean().item()
        print(f"done: recognises {right:.1%} of {TEST_DIGITS} unseen digits", flush=True)
    dist.barrier()
    leave(0)


if __name__ == "__main__":
    main()
