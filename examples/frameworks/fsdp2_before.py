"""Pretrain a tiny Llama with FSDP2, bfloat16 and activation checkpointing: before Headway."""

import fsdp2
import tiny
from torch.nn.utils import clip_grad_norm_

STEPS = 30
net = tiny.model()
fsdp2.parallelize(net, fsdp2.mesh())
optimizer, schedule = fsdp2.optimizers(net)
data = fsdp2.batches()

for step in range(STEPS):
    if step % 5 == 0:
        print(f"step {step}: loss {fsdp2.evaluate(net):.6f}", flush=True)
    loss = net(**next(data)).loss
    loss.backward()
    clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
print(f"step {STEPS}: loss {fsdp2.evaluate(net):.6f}", flush=True)
