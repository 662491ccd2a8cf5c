"""Settings of modules that a script changes while it trains, and what of them other ranks take over."""

from __future__ import annotations

import torch
from torch import nn

from headway.train.checkpoint.model_settings import ModelSettings
from headway.train.checkpoint.replica import Place, Replica


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))


def _begun(model: nn.Module) -> ModelSettings:
    settings = ModelSettings(lambda: [model])
    settings.begin()
    return settings


def test_only_changed_settings_are_taken_over() -> None:
    mine, theirs = _model(), _model()
    mine.rank, theirs.rank = 0, 1  # a rank's own
    here, there = _begun(mine), _begun(theirs)
    mine[1].p = 0.1
    mine[0].eval()
    theirs[1].eval()
    there.take_over(here.changed)
    assert (theirs[1].p, theirs[0].training, theirs[1].training, theirs.rank) == (0.1, False, True, 1)


def test_size_of_a_cache_stays_that_of_its_rank() -> None:
    mine, theirs = _model(), _model()
    here, there = _begun(mine), _begun(theirs)
    mine[0].cache, mine[0].cached, mine[0].tau, mine[1].count = torch.zeros(3), 3, 0.5, 3
    there.take_over(here.changed)
    assert not hasattr(theirs[0], "cached")
    assert (theirs[0].tau, theirs[1].count) == (0.5, 3)


def test_settings_of_a_checkpoint_hold_against_what_the_script_sets_before_its_loop() -> None:
    mine, theirs = _model(), _model()
    replicas = [Replica([one, torch.optim.SGD(one.parameters(), lr=0.1)]) for one in (mine, theirs)]
    mine[1].p = 0.4
    replicas[0].settings.begin()
    mine[1].p = 0.2
    replicas[1].take_over(replicas[0].state(Place().with_data(10, 0)))
    theirs[1].p = 0.4
    replicas[1].settings.begin()
    assert theirs[1].p == 0.2
    assert replicas[1].settings.changed == replicas[0].settings.changed == [{"1": {"p": 0.2}}]


def test_settings_move_to_the_model_that_is_rebuilt_for_other_ranks() -> None:
    replica = Replica([_model()])
    replica.model[1].p = 0.4
    replica.settings.begin()
    replica.model[1].eval()
    replica.model[0].tau = 0.1
    changed = replica.settings.changed
    replica.objects[0] = _model()  # as before the script has changed it
    replica.settings.take_over(changed)
    assert (replica.model[1].p, replica.model[1].training, replica.model[0].tau) == (0.4, False, 0.1)
    replica.model[0].tau = 0.2
    assert replica.settings.changed == [{"1": {"training": False}, "0": {"tau": 0.2}}]
