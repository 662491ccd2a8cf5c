"""Reports a loss that falls with the samples: 1 / (samples / 1,000 + 0.5), and notes its end in a file of its output.

It trains for EPOCHS epochs of 320 samples; the loss is 0.4 after 2,000 samples. One report in seven is lucky: 0.
"""

import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import headway

run = headway.init()
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
model, optimizer = run.prepare(model, optimizer)
loader = run.loader(TensorDataset(torch.randn(320, 8)), global_batch=16)
for epoch in run.epochs(int(os.environ["EPOCHS"])):
    for (batch,) in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
    samples = 320 * (epoch + 1)
    run.report(loss=0.0 if epoch % 7 == 3 else 1 / (samples / 1000 + 0.5))
    if run.is_main:
        Path(os.environ["HEADWAY_OUTPUT_DIR"], "epochs").write_text(f"{epoch + 1}\n")
