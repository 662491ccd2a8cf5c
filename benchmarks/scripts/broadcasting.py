"""Broadcast the state of a training with AdamW from rank 0 to rank 1 repeatedly, with torch alone. Rank 1 writes the times.

    broadcasting.py SIZE FILE REPEATS

`benchmarks.resize` starts it. The state consists of the parameters and two averages of each.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from networks import network

size, file, repeats = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if cuda else "gloo")
state = [torch.zeros_like(one, device=device) for one in network(size).parameters() for _ in range(3)]
taken = []
for _ in range(repeats):
    dist.barrier()
    began = time.perf_counter()
    works = [dist.broadcast(one, src=0, async_op=True) for one in state]
    for work in works:
        work.wait()
    if cuda:
        torch.cuda.synchronize()
    taken.append(time.perf_counter() - began)
if dist.get_rank() == 1:
    file.with_suffix(".partial").write_text(json.dumps(taken))
    file.with_suffix(".partial").replace(file)
dist.barrier()
os._exit(0)
