"""Train the small GPT of gpt_char.py in pipeline stages, with FSDP2 or replicas over the pipelines.

HEADWAY_MESH=pp=2,fsdp=2 torchrun --nproc-per-node 4 examples/gpt_pp.py   # on four processes, without Headway
headway submit examples/gpt_pp.yaml                                       # as a job, on two or four slots
headway resize gpt-pp 4                                                   # while it trains
"""

import argparse

import torch
from gpt_char import CharacterGpt, Windows, standard_library
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import headway
from headway.train import clip_grad_norm_


class StagedGpt(CharacterGpt):
    """The GPT of which a stage has some of the layers: the others are None, or the identity."""

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens, or the output of the stage before, to scores, or to the input of the next stage."""
        if self.character is not None:
            x = self.character(x) + self.place[: x.shape[1]]
        x = self.blocks(x)
        return x if self.head is None else self.head(self.norm(x))


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Keep the layers of this rank's stage under their names, and shard them over the pipelines."""
    stage, stages = mesh.get_local_rank("pp"), mesh["pp"].size()
    blocks = model.get_submodule("blocks")
    pipelines = mesh["replicate", "fsdp"]
    for number in range(len(blocks)):
        if number * stages // len(blocks) == stage:
            fully_shard(blocks[number], mesh=pipelines)
        else:
            blocks[number] = nn.Identity()
    if stage > 0:
        model.character = model.place = None
    if stage < stages - 1:
        model.norm = model.head = None
    return fully_shard(model, mesh=pipelines)


def loss_of(scores: Tensor, following: Tensor) -> Tensor:
    """Return the mean loss in nats per character, from the output of the last stage."""
    return cross_entropy(scores.flatten(0, 1), following.flatten())


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
    model = StagedGpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer = run.prepare(
        model, optimizer, parallelize=parallelize, mesh=("pp", "replicate", "fsdp")
    )
    pipeline = run.pipeline(loss_of, micro_batches=4)

    for _ in run.epochs(options.epochs):
        for window, following in loader:
            optimizer.zero_grad()
            loss = pipeline.step(window, target=following)
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        run.report(loss=loss)


if __name__ == "__main__":
    main()
