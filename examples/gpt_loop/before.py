"""Train a small GPT by steps, in a loop without epochs or DataLoader: before Headway."""

import math
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from model import GPT, prepare
from torch import Tensor
from torch.distributed import destroy_process_group, init_process_group

# Settings, which `--name=value` replaces.
out_dir, data_dir = "out", "/tmp/gpt_loop"
eval_interval, eval_iters, log_interval = 100, 8, 10
gradient_accumulation_steps, batch_size, block_size = 4, 8, 64
n_layer, n_head, n_embd = 2, 4, 64
max_iters, warmup_iters = 600, 20
learning_rate, min_lr, weight_decay, grad_clip = 3e-3, 3e-4, 0.1, 1.0
device, dtype = "cuda" if torch.cuda.is_available() else "cpu", "float32"
for argument in sys.argv[1:]:
    name, value = argument.removeprefix("--").split("=")
    globals()[name] = type(globals()[name])(value)

ddp = "RANK" in os.environ  # started by torchrun
if ddp:
    init_process_group(backend="nccl" if device == "cuda" else "gloo")
    master_process = os.environ["RANK"] == "0"
    seed_offset = int(os.environ["RANK"])
    assert gradient_accumulation_steps % int(os.environ["WORLD_SIZE"]) == 0
    gradient_accumulation_steps //= int(os.environ["WORLD_SIZE"])
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
else:
    master_process, seed_offset = True, 0
torch.manual_seed(1337 + seed_offset)
device_type = device.split(":")[0]
ctx = nullcontext() if dtype == "float32" else torch.autocast(device_type, dtype=getattr(torch, dtype))

prepare(data_dir)


def tokens(split: str) -> np.ndarray:
    return np.memmap(Path(data_dir) / f"{split}.bin", dtype=np.uint16, mode="r")


def get_batch(split: str) -> tuple[Tensor, Tensor]:
    data = tokens(split)
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x.to(device), y.to(device)


model = GPT(block_size, n_layer, n_head, n_embd).to(device)
scaler = torch.amp.GradScaler(device_type, enabled=dtype == "float16")
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay)
iter_num = 0
ckpt_path = Path(out_dir) / "ckpt.pt"
if ckpt_path.exists():
    checkpoint = torch.load(ckpt_path, map_location=device, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
raw_model = model
if ddp:
    model = torch.nn.parallel.DistributedDataParallel(model)


@torch.no_grad()
def estimate_loss() -> dict[str, float]:
    raw_model.eval()
    losses = {
        split: torch.stack([raw_model(*get_batch(split))[1] for _ in range(eval_iters)]).mean().item()
        for split in ("train", "val")
    }
    raw_model.train()
    return losses


def get_lr(it: int) -> float:
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    done = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * done)) * (learning_rate - min_lr)


X, Y = get_batch("train")
while True:
    for param_group in optimizer.param_groups:
        param_group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0 and master_process:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}", flush=True)
        if iter_num > 0:
            state = {
                "model": raw_model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "iter_num": iter_num,
            }
            ckpt_path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(state, ckpt_path.with_suffix(".new"))
            ckpt_path.with_suffix(".new").replace(ckpt_path)
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0 and master_process:
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}", flush=True)
    iter_num += 1
    if iter_num > max_iters:
        break

if ddp:
    destroy_process_group()
