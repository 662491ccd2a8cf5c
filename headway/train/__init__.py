"""The library in a training process: exact data position, stop agreement, checkpoints, over plain DDP.

    run = headway.init()
    model, optimizer = run.prepare(model, optimizer)
    loader = run.loader(dataset, global_batch=256)
    for epoch in run.epochs(90):
        for x, y in loader:
            ...

`session` is the whole of what a script sees; `training` is the order of things at a step boundary; the
other modules are its parts and know nothing of one another.
"""

from headway.train.loader import Loader
from headway.train.session import Run, init

__all__ = ["Loader", "Run", "init"]
