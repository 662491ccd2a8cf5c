"""A script as PyTorch's examples have it runs elastically after the five lines of the guide."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from headway.contract.runtime import EpochClosed
from tests.elastic.harness import Job
from tests.elastic.live import Live

EPOCHS, STEPS = 4, 13
"""200 samples by 16."""


def test_mnist_script_resized_while_it_trains_learns_and_ends_its_schedule(job: Callable[..., Job]) -> None:
    made = job("mnist.py", "--epochs", EPOCHS)
    made.arguments = [*made.arguments, "--result", str(made.folder)]
    live = Live(made)
    live.start(1, steps=3)
    live.wait_until_held()
    live.give(live.newcomers(live.members, 1))
    live.allow(STEPS)
    live.wait_for_switch()
    live.allow_all()
    assert live.wait() == [0, 0], live.output()
    for rank in range(2):
        result = torch.load(made.folder / f"{rank}-of-2.pt", weights_only=True)
        assert result["steps"] == EPOCHS * STEPS
        assert result["total"] == EPOCHS * STEPS
        assert result["lr"][0] < 0.01 / 25, "the schedule has reached its end"
        assert result["accuracy"] > 0.9
    printed = live.output()
    assert f"Epoch: 0 of {EPOCHS} | Batch: 16 | Steps: {STEPS}" in printed
    last = re.findall(rf"Epoch: {EPOCHS - 1} of {EPOCHS} \| Batch: (\d+) \| Steps: {STEPS}", printed)
    assert (len(last), sum(map(int, last))) == (2, 16), "the ranks share the batch, by their speed"
    assert "[192/200 (92%)]" in printed
    audits = {one.epoch: one for one in live.messages(EpochClosed)}
    assert set(audits) == set(range(EPOCHS))
    assert all(one.exactly_once for one in audits.values())
