"""Workers of a loader end with their rank, and only with it."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from headway.train.host.workers import EndWithRank, end_with_rank

KILLED_AT_ITS_FIRST_SAMPLE = """
import os, signal, threading, torch, headway
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Kills(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        print("worker", os.getpid(), flush=True)
        os.kill(os.getppid(), signal.SIGKILL)
        threading.Event().wait(20)
        print("still here", flush=True)

run = headway.init()
model = nn.Linear(1, 1)
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters()))
if BY_SAMPLER:
    sampler = run.sampler(8, global_batch=4)
    data = sampler.through(DataLoader(Kills(), batch_sampler=sampler, num_workers=1))
else:
    data = run.loader(Kills(), global_batch=4, num_workers=1)
for _ in run.epochs(1):
    for batch in data:
        pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such signal")
@pytest.mark.parametrize("by_sampler", [False, True])
def test_worker_that_reads_a_sample_ends_with_its_killed_rank(*, by_sampler: bool) -> None:
    script = KILLED_AT_ITS_FIRST_SAMPLE.replace("BY_SAMPLER", str(by_sampler))
    # The worker keeps the output open, so this returns once it has ended, too.
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == -9, ended.stderr
    assert ended.stdout.startswith("worker "), ended.stderr
    assert "still here" not in ended.stdout


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def test_workers_started_by_a_thread_outlive_it() -> None:
    loader = DataLoader(Numbers(), batch_size=2, num_workers=1, prefetch_factor=1)
    found = []

    def begin() -> None:
        end_with_rank(loader)
        found.append(iter(loader))
        found.append(next(found[0]))

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    assert loader.worker_init_fn is None
    assert [batch.tolist() for batch in (found[1], *found[0])] == [[0, 1], [2, 3], [4, 5]]


def test_function_of_the_script_runs_once_in_each_worker() -> None:
    def mark(worker: int) -> None:
        torch.manual_seed(worker + 5)

    loader = DataLoader(Numbers(), num_workers=1, worker_init_fn=mark)
    end_with_rank(loader)
    end_with_rank(loader)
    assert isinstance(loader.worker_init_fn, EndWithRank)
    assert loader.worker_init_fn.after is mark
    before = torch.random.get_rng_state()
    try:
        loader.worker_init_fn(2)
        assert torch.initial_seed() == 7
    finally:
        torch.random.set_rng_state(before)
