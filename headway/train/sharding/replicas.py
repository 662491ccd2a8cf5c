"""Commit of each step where each shard of a model has replicas (HSDP), so that losses cost at most the step in progress.

A one-element all-reduce commits a step. If a rank is lost meanwhile, another one may not know that the step is committed: it
keeps the gradients, and takes the step later if any remaining rank has taken it.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn
from torch.optim import Optimizer

from headway.train.membership.meeting import PeersLost
from headway.train.membership.peers import Peers
from headway.train.sharding.held_step import HeldStep


class Replicas:
    """The commit of each step (`StepCommit`), and the place of this rank's shards in the mesh."""

    def __init__(self, optimizer: Optimizer, device: torch.device) -> None:
        self.position: int | None = None
        """Rank of this process in the mesh whose shards it holds; None while shards move, or have no replicas."""
        self._device = device
        self._held = HeldStep(optimizer)
        self._parameters: Collection[nn.Parameter] = ()
        self._peers: Peers | None = None
        self._has_gradients = True

    def establish(self, peers: Peers, parameters: Collection[nn.Parameter]) -> None:
        """Commit the steps of these parameters from now on. Every rank calls it with complete shards."""
        self.position, self._peers, self._parameters = peers.rank, peers, parameters

    def forget(self) -> None:
        """Drop the place and a kept step: this rank's shards move."""
        self.position, self._peers, self._parameters = None, None, ()
        self._held.forget()

    def agree(self) -> bool:
        """Return True if every rank takes the step. A rank that returned False may have to take it later."""
        assert self._peers is not None, "establish() comes first"
        has_gradients, self._has_gradients = self._has_gradients, True
        try:
            self._peers.commit(self._device)
        except PeersLost:
            if has_gradients:
                self._held.keep(self._parameters)
            return False
        return True

    def follow(self) -> None:
        """Do nothing: each replica takes the step itself."""

    def before_closure(self) -> None:
        """Note that the gradients of this step are unknown before it, so that a rank cannot take it later."""
        self._has_gradients = False

    def take_held_step(self, lr_factor: float) -> bool:
        """Take the step that another rank has taken. Return False if `agree` did not keep it."""
        return self._held.take(lr_factor)
