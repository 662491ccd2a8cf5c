"""A trial of the self-test: a job grows, loses a rank, shrinks, stops and restarts, and its losses are compared.

The reference is a job of one rank that is left alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.contract import runtime
from headway.selftest.members import Members

StateKind = Literal["replicated", "sharded"]

_PACE_S = 0.03
_STEPS_BETWEEN = 5
"""Steps that a trial waits for after each change."""
_ENDLESS = 1_000_000


@dataclass(frozen=True)
class Change:
    """The pause of a change of members, the steps that were repeated, and the bytes of state that were received."""

    pause_s: float
    lost_steps: int
    sync_bytes: int

    @classmethod
    def of(cls, switched: list[runtime.Switched]) -> Change:
        """Return the change as its members describe it: the worst of each number."""
        return cls(
            max(one.pause_s for one in switched),
            max(one.lost_steps for one in switched),
            max(one.sync_bytes for one in switched),
        )


@dataclass(frozen=True)
class TrialResult:
    """Results of a trial. `loss` is None for a sharded model, whose lost shards only a checkpoint has.

    `grows` has the first growth, which includes what a process does once, and later ones. `loss_error` is the largest relative difference of a loss from that of the reference, over `steps` steps. `resumed_at` is
    the number of samples at which the restart continued, and `stopped_at` that of the stop.
    """

    grows: list[Change]
    shrink: Change
    loss: Change | None
    loss_error: float
    steps: int
    stopped_at: int
    resumed_at: int


def run_trial(kind: StateKind, folder: Path, *, gpus: int, width: int) -> TrialResult:
    """Run a trial over `gpus` GPUs, or on the CPU for 0, with layers of `width` units.

    Raises:
        TrialFailed: the ranks did not do what was ordered.
    """
    log = folder / "losses.jsonl"
    members = Members(
        folder,
        _command(kind, log, width, _PACE_S, _ENDLESS),
        gpus=gpus,
        env={runtime.ENV_CHECKPOINT_URI: (folder / "checkpoints").as_uri()},
    )
    loss = None
    try:
        members.start(1)
        _await_steps(members, log)
        grows = [Change.of(members.grow())]
        _await_steps(members, log)
        if kind == "replicated":
            loss = Change.of(members.lose(1))
            _await_steps(members, log)
            grows.append(Change.of(members.grow()))
            _await_steps(members, log)
        shrink = Change.of(members.shrink(0))
        _await_steps(members, log)
        stopping = members.present
        members.stop()
        members.start(2)
        _await_steps(members, log)
        restarted = members.present
        members.stop()
    finally:
        members.kill()
    losses = _losses(log)
    return TrialResult(
        grows=grows,
        shrink=shrink,
        loss=loss,
        loss_error=_largest_error(losses, _reference(kind, folder, gpus, width, len(losses))),
        steps=len(losses),
        stopped_at=max(one.samples for member in stopping for one in member.messages(runtime.Stopped)),
        resumed_at=max(
            (one.samples for member in restarted for one in member.messages(runtime.Restored)), default=0
        ),
    )


def _reference(kind: StateKind, folder: Path, gpus: int, width: int, steps: int) -> dict[int, float]:
    """Return the loss before each of `steps` steps of one rank that is left alone."""
    alone = folder / "alone"
    alone.mkdir()
    log = alone / "losses.jsonl"
    members = Members(alone, _command(kind, log, width, 0.0, steps), gpus=gpus, env={})
    try:
        members.start(1)
        members.wait()
    finally:
        members.kill()
    return _losses(log)


def _command(kind: StateKind, log: Path, width: int, pace_s: float, steps: int) -> list[str]:
    return ["headway.selftest.script", kind, str(log), str(width), str(pace_s), str(steps)]


def _await_steps(members: Members, log: Path) -> None:
    after = len(_losses(log)) + _STEPS_BETWEEN
    members.until("a step", lambda: len(_losses(log)) >= after)


def _losses(log: Path) -> dict[int, float]:
    """Return the loss before each step, by its number. A repeated step counts once."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
    written = [json.loads(line) for line in lines if line.endswith("\n")]
    return {one["step"]: one["loss"] for one in written}


def _largest_error(losses: dict[int, float], reference: dict[int, float]) -> float:
    """Return the largest relative difference; infinite if a step is missing."""
    if losses.keys() != reference.keys():
        return float("inf")
    return max(abs(losses[step] - reference[step]) / abs(reference[step]) for step in reference)
