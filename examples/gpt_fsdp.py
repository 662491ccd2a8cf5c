"""Train the small GPT of gpt_char.py with its parameters sharded over the ranks (FSDP2), which change in place.

torchrun --nproc-per-node 2 examples/gpt_fsdp.py         # on two processes, without Headway
headway submit examples/gpt_fsdp.yaml                    # as a job, on one to three slots
headway resize gpt-fsdp 3                                # while it trains
"""

import argparse

import torch
from gpt_char import CharacterGpt, Windows, loss_of, standard_library
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import headway


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard each block by itself, so that a rank holds one whole block at a time, and then the rest."""
    for block in model.get_submodule("blocks"):
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--characters", type=int, default=600_000, help="length of the text")
    options = parser.parse_args()

    torch.manual_seed(0)
    run = headway.init()
    loader = run.loader(Windows(standard_library(options.characters)), global_batch=32, seed=0)
    model = CharacterGpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer = run.prepare(model, optimizer, parallelize=parallelize)

    for _ in run.epochs(options.epochs):
        for window, following in loader:
            loss = loss_of(model, window, following)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        run.report(loss=loss)


if __name__ == "__main__":
    main()
