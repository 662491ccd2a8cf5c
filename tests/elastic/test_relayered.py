"""Layers of a sharded model that a script changes after prepare: refused by name, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.elastic.harness import Job, codes
from tests.elastic.live import Live

SAID = {
    "layer": "replaced layer 2 of",
    "activation": "replaced layer 1 of",
    "more": "added layer 5 of",
    "fewer": "removed layer 4 of",
    "parameter": "replaced parameter 0.weight of",
    "parametrization": "added layer 2.parametrizations of",
    "tie": "replaced parameter 4.weight of",
}


@pytest.fixture
def relayered(job: Callable[..., Job]) -> Callable[..., Job]:
    """Makes a job of `relayered.py`."""

    def make(*arguments: object) -> Job:
        made = job("relayered.py", *arguments)
        made.arguments = [*made.arguments, "--result", str(made.folder)]
        return made

    return make


@pytest.mark.slow
@pytest.mark.parametrize("change", SAID)
def test_changed_layer_of_a_sharded_model_ends_the_job_by_its_name(
    relayered: Callable[..., Job], change: str
) -> None:
    ended = relayered("--change", change).run(2)
    assert 1 in codes(ended), ended.output()
    assert f"the script has {SAID[change]} a sharded model after prepare()" in ended.output()


@pytest.mark.parametrize("place", ["after forward", "between steps"])
def test_layer_replaced_at_another_place_is_refused(relayered: Callable[..., Job], place: str) -> None:
    made = relayered("--change", "layer", "--place", place)
    ended = made.run(2)
    assert 1 in codes(ended), ended.output()
    assert f"the script has {SAID['layer']} a sharded model after prepare()" in ended.output()


def test_whole_parameters_between_steps_are_no_change(relayered: Callable[..., Job]) -> None:
    alone = relayered()
    ended = alone.run(1)
    assert codes(ended) == [0], ended.output()
    live = Live(relayered())
    live.start(1, steps=2)
    live.play([lambda: live.newcomers(live.members, 1), lambda: live.newcomers(live.members[1:], 1)], steps=3)
    live.allow_all()
    assert live.wait() == [0, 0], live.output()
    expected = torch.load(alone.folder / "0-of-1.pt", weights_only=True)
    for rank in range(2):
        found = torch.load(live.job.folder / f"{rank}-of-2.pt", weights_only=True)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
