"""Train a tiny Llama in a loop of Accelerate: after."""

import torch
from tiny import Sums, collate, model
from torch.utils.data import DataLoader
from transformers import get_cosine_schedule_with_warmup

from headway.integrations.accelerate import ElasticAccelerator, elastic_run

EPOCHS = 3
run = elastic_run()
accelerator = ElasticAccelerator(run, gradient_accumulation_steps=2)
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
# Equally long texts: the loss of a batch is then a mean over its samples.
data = DataLoader(Sums(200, seed=1, digits=4), batch_size=8, shuffle=True, collate_fn=collate)
test = DataLoader(Sums(64, seed=2, digits=4), batch_size=64, collate_fn=collate)
schedule = get_cosine_schedule_with_warmup(optimizer, 5, EPOCHS * len(data) // 2)
net, optimizer, data, test, schedule = accelerator.prepare(net, optimizer, data, test, schedule)

for epoch in run.epochs(EPOCHS):
    for batch in data:
        with accelerator.accumulate(net):
            loss = net(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    net.eval()
    with torch.no_grad():
        losses = [accelerator.gather_for_metrics(net(**batch).loss).mean() for batch in test]
    net.train()
    accelerator.log({"epoch": epoch, "eval_loss": sum(losses) / len(losses)})
    accelerator.print(f"epoch {epoch}: loss {sum(losses) / len(losses):.4f}")
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    accelerator.unwrap_model(net).save_pretrained("out")
