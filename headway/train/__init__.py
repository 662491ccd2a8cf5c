"""The training library: exact data positions, agreed stops and checkpoints on top of plain DDP.

    run = headway.init()
    model, optimizer = run.prepare(model, optimizer)
    loader = run.loader(dataset, global_batch=256)
    for epoch in run.epochs(90):
        for x, y in loader:
            ...

`session` is the interface for scripts. `training` defines the order of events at a step boundary. The other
modules do not depend on one another.
"""

from headway.train.gradients.clipping import clip_grad_norm_
from headway.train.loader import Loader
from headway.train.membership.changes import Change, Preemption
from headway.train.session import Run, init

__all__ = ["Change", "Loader", "Preemption", "Run", "clip_grad_norm_", "init"]
