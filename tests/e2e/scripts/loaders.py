"""Trains with worker processes of data loaders in every way in which Python starts them, under a profiler, and prints what it kept.

The last line of rank 0 is a JSON object: samples that each way delivered, whether the profiler saw the model, and the mode of
seccomp (2: a filter) of the rank and of a loader's worker.
"""

import json
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import headway

SAMPLES = 64
WAYS = (
    ("fork", "file_descriptor"),
    ("fork", "file_system"),
    ("spawn", "file_descriptor"),
    ("forkserver", "file_system"),
)
"""Start of a loader's workers, and of the memory through which they hand over tensors."""


class Squares(Dataset[torch.Tensor]):
    """Numbers and their squares, with the mode of seccomp of the process that read them."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), float(index**2), float(seccomp())])


def seccomp() -> int:
    """Return the mode of seccomp of this process."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").split()
    return int(status[status.index("Seccomp:") + 1])


def main() -> None:
    """Train two epochs through Headway's loader, and on rank 0 read other data once through each kind of worker."""
    run = headway.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.randn(256, 4)
    loader = run.loader(
        TensorDataset(data, data.sum(1, keepdim=True)),
        global_batch=32,
        num_workers=2,
    )
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in run.epochs(2):
            for x, y in loader:
                loss = (model(x) - y).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    if run.rank != 0:
        return
    found: dict[str, object] = {
        "rank": seccomp(),
        "profiled": any("addmm" in event.key for event in profile.key_averages()),
    }
    for start, sharing in WAYS:
        torch.multiprocessing.set_sharing_strategy(sharing)
        rows = torch.cat(
            list(DataLoader(Squares(), batch_size=16, num_workers=1, multiprocessing_context=start))
        )
        found[f"{start}, {sharing}"] = [len(rows), int(rows[:, 2].min())]
    print("KEPT", json.dumps(found), flush=True)  # noqa: T201  # the test reads it in the log


if __name__ == "__main__":
    main()
