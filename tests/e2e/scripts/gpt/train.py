"""A training script in the manner of nanoGPT, which knows torchrun and nothing of Headway.

It finds its ranks in the environment, draws windows of a memory-mapped file, and keeps its own checkpoints, from
which it continues if `init_from` says so.
"""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

out_dir, data_dir, init_from = "out", "data", "scratch"
eval_interval, eval_iters, log_interval, always_save_checkpoint = 100, 4, 1, True
gradient_accumulation_steps, batch_size, block_size = 8, 12, 64
width, learning_rate, grad_clip, max_iters = 32, 3e-3, 1.0, 1000
backend, device, pause_s = "nccl", "cuda", 0.0
exec(open("configure.py").read())

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend=backend)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    assert gradient_accumulation_steps % world_size == 0
    gradient_accumulation_steps //= world_size
else:
    rank, world_size = 0, 1
master_process = rank == 0
if master_process:
    os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337 + rank)


def get_batch(split):
    data = np.memmap(os.path.join(data_dir, f"{split}.bin"), dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    windows = torch.stack([torch.from_numpy(data[i : i + block_size + 1].astype(np.int64)) for i in ix])
    return windows[:, :-1].to(device), windows[:, 1:].to(device)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(256, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens, targets):
        logits = self.head(self.mix(self.embed(tokens))[0])
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


iter_num, best_val_loss = 0, 1e9
ckpt_path = os.path.join(out_dir, "ckpt.pt")
model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
if init_from == "resume":
    checkpoint = torch.load(ckpt_path, map_location=device)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num, best_val_loss = checkpoint["iter_num"], checkpoint["best_val_loss"]
    checkpoint = None
raw_model = model
if ddp:
    model = DistributedDataParallel(model)


@torch.no_grad()
def estimate_loss():
    return {
        split: torch.stack([raw_model(*get_batch(split))[1] for _ in range(eval_iters)]).mean().item()
        for split in ("train", "val")
    }


X, Y = get_batch("train")
while iter_num <= max_iters:
    if iter_num % eval_interval == 0 and master_process:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}", flush=True)
        if iter_num > 0 and (losses["val"] < best_val_loss or always_save_checkpoint):
            best_val_loss = min(best_val_loss, losses["val"])
            torch.save(
                {
                    "model": raw_model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": iter_num,
                    "best_val_loss": best_val_loss,
                },
                ckpt_path,
            )
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        loss = model(X, Y)[1] / gradient_accumulation_steps
        X, Y = get_batch("train")
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0 and master_process:
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}", flush=True)
    time.sleep(pause_s)
    iter_num += 1
if ddp:
    destroy_process_group()
