"""Train the small GPT of gpt_char.py on a mesh: tensor parallelism within pairs of ranks, FSDP2 or replicas over the pairs.

HEADWAY_MESH=fsdp=2,tp=2 torchrun --nproc-per-node 4 examples/gpt_tp.py   # on four processes, without Headway
headway submit examples/gpt_tp.yaml                                       # as a job, on two or four slots
headway resize gpt-tp 4                                                   # while it trains
"""

import argparse

import torch
from gpt_char import CharacterGpt, Windows, loss_of, standard_library
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import headway
from headway.train import clip_grad_norm_


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Divide each feed-forward layer over the ranks of a pair, and shard what each rank has over the pairs."""
    plan = {"blocks.*.feed_forward.0": ColwiseParallel(), "blocks.*.feed_forward.2": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    pairs = mesh["replicate", "fsdp"]
    for block in model.get_submodule("blocks"):
        fully_shard(block, mesh=pairs)
    return fully_shard(model, mesh=pairs)


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
    model, optimizer = run.prepare(
        model, optimizer, parallelize=parallelize, mesh=("replicate", "fsdp", "tp")
    )

    for _ in run.epochs(options.epochs):
        for window, following in loader:
            loss = loss_of(model, window, following)
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        run.report(loss=loss)


if __name__ == "__main__":
    main()
