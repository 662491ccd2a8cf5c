"""Pretrain a tiny Llama with FSDP2, bfloat16 and activation checkpointing: after."""

import fsdp2
import tiny
from torch.nn.utils import clip_grad_norm_

import headway

STEPS = 30
net = tiny.model()
run = headway.init()
net, optimizer, schedule = run.prepare(net, *fsdp2.optimizers(net), parallelize=fsdp2.parallelize)
data = run.loader(fsdp2.TRAINING, global_batch=fsdp2.BATCH, collate_fn=tiny.collate)

for step in run.train_steps(STEPS):
    if step % 5 == 0:
        print(f"step {step}: loss {fsdp2.evaluate(net):.6f}", flush=True)
    loss = net(**next(data)).loss
    loss.backward()
    clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
print(f"step {STEPS}: loss {fsdp2.evaluate(net):.6f}", flush=True)
