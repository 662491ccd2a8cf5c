"""Train without Headway until stopped by SIGTERM. Rank 0 logs the end time of each step.

    restarting.py SIZE FILE CHECKPOINT

`benchmarks.resize` starts it. At SIGTERM all ranks finish the same step and save the state. The next start loads it at any
size, as usual for scripts that can be stopped.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from networks import adamw, network, samples
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCH = 16

size, file, checkpoint = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
stop = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda *_: stop.fill_(1))
cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
torch.set_num_threads(1)
dist.init_process_group("nccl" if cuda else "gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = network(size).to(device)
optimizer = adamw(model)
if checkpoint.exists():
    state = torch.load(checkpoint, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
replicas = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
data = samples(size)
loader = DataLoader(data, batch_size=BATCH // world_size, sampler=DistributedSampler(data))
while True:
    for (x,) in loader:
        loss = replicas(x.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        anyone = stop.to(device, copy=True)
        dist.all_reduce(anyone, op=dist.ReduceOp.MAX)
        stopped = bool(anyone)  # waits for the device
        if rank == 0:
            with file.open("a", encoding="utf-8") as notes:
                notes.write(f"{time.monotonic()} {world_size}\n")
        if stopped:
            if rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, checkpoint.with_suffix(".partial"))
                checkpoint.with_suffix(".partial").replace(checkpoint)
            dist.barrier()
            os._exit(143)
