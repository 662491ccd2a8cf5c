"""What-if comparison: replays of the live cluster without and with changes, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from headway.contract.views.simulations import SimulationRequest, SimulationResult
from service.domain.cluster.snapshot import PolicySetting, Snapshot
from service.domain.policies.framework.policy import Policy, keeps_batch
from service.domain.policies.registry import POLICIES, Policies
from service.domain.shared.arrays import FloatArray
from service.simulation.changes import ChangedSnapshot, settings_of, with_changes
from service.simulation.model.world import JobRows, World
from service.simulation.replay.engine import replay
from service.simulation.report.outcomes import Runs, comparisons, differences, outcome_of
from service.simulation.snapshots import BelievedWorld, believed_world, sampled

_S_PER_H = 3600.0
BASELINE = "as it is"
"""Label of the cluster without changes."""


def compare(
    snapshot: Snapshot,
    request: SimulationRequest,
    ended_samples: Mapping[str, Sequence[float]],
    *,
    on_progress: Callable[[float], None] = lambda _: None,
    policies: Policies = POLICIES,
) -> SimulationResult:
    """Return the outcomes of the unchanged cluster, and of the changed cluster under each policy.

    `ended_samples` are the samples that ended jobs took, by class. `on_progress` is called with the share of
    work done, from 0 to 1. The result is deterministic. Raise InvalidField for changes that cannot be made.
    """
    changed = with_changes(snapshot, request.changes, policies)
    settings = settings_of(changed.snapshot, request.policies, policies)
    horizon_s = request.horizon_s
    worlds_of = partial(_believed_worlds, policies, ended_samples, horizon_s)
    unchanged = ChangedSnapshot(snapshot=snapshot)
    if request.changes:
        before, after = worlds_of(unchanged, [snapshot.policy]), worlds_of(changed, settings)
    else:
        before = after = worlds_of(unchanged, [snapshot.policy, *settings])
    cases = [
        (BASELINE, before[_keeps(policies, snapshot.policy)], snapshot.policy),
        *((_label(one), after[_keeps(policies, one)], one) for one in settings),
    ]
    found = []
    for index, (label, believed, setting) in enumerate(cases):
        rows = []
        for seed in range(request.seeds):
            report = partial(
                _part_done, on_progress, index * request.seeds + seed, len(cases) * request.seeds
            )
            world = sampled(believed, seed)
            if setting != snapshot.policy:
                # As in the live cluster, a new policy setting starts without state.
                world = replace(world, policy_state={})
            rows.append(_rows(world, policies.of_setting(setting), report))
        found.append(_runs(label, setting, believed, rows))
    baseline = found[0]
    return SimulationResult(
        at=snapshot.now,
        seeds=request.seeds,
        horizon_s=horizon_s,
        outcomes=[
            outcome_of(baseline, horizon_s),
            *(
                outcome_of(one, horizon_s).model_copy(
                    update={"differences": list(differences(baseline, one, horizon_s))}
                )
                for one in found[1:]
            ),
        ],
        jobs=comparisons(found),
        warnings=list(dict.fromkeys(warning for _, one, _ in cases for warning in one.warnings)),
    )


def _keeps(policies: Policies, setting: PolicySetting) -> bool:
    return keeps_batch(policies.of_setting(setting))


def _believed_worlds(
    policies: Policies,
    ended_samples: Mapping[str, Sequence[float]],
    horizon_s: float,
    changed: ChangedSnapshot,
    settings: Sequence[PolicySetting],
) -> dict[bool, BelievedWorld]:
    """Return the worlds that these policies need: with jobs that keep their batches (True), and that do not."""
    return {
        keeps: believed_world(
            replace(changed, snapshot=replace(changed.snapshot, keeps_batch=keeps)),
            ended_samples,
            horizon_s=horizon_s,
        )
        for keeps in sorted({_keeps(policies, one) for one in settings})
    }


def _part_done(on_progress: Callable[[float], None], done: int, runs: int, part: float) -> None:
    """Report progress after `done` runs and a part of the next one."""
    on_progress((done + part) / runs)


def _rows(world: World, follows: Policy, on_progress: Callable[[float], None]) -> JobRows | None:
    """Return the job rows of a replay of the world, or None if the world has no jobs."""
    return replay(world, follows, on_progress=on_progress).jobs if world.arrivals else None


def _runs(
    label: str, setting: PolicySetting, believed: BelievedWorld, rows: Sequence[JobRows | None]
) -> Runs:
    submits_s = np.array([max(0.0, one.submit_s) for one in believed.world.arrivals])
    shape = (len(rows), len(submits_s))

    def stacked(name: str) -> FloatArray:
        return np.array([getattr(one, name) for one in rows if one is not None], np.float64).reshape(shape)

    return Runs(
        label=label,
        setting=setting,
        ids=tuple(one.id for one in believed.world.arrivals),
        names=believed.names,
        endless=believed.endless,
        submit_s=submits_s,
        start_s=np.maximum(stacked("start_s"), submits_s),
        end_s=stacked("end_s"),
        usd=stacked("usd"),
        slot_h=stacked("served_slot_s") / _S_PER_H,
        changes=stacked("changes"),
        slots=sum(kind.slots for kind in believed.world.kinds),
    )


def _label(setting: PolicySetting) -> str:
    """Return the name of a policy with the parameters that differ from its defaults."""
    values = ", ".join(
        f"{name}={value:g}" if isinstance(value, int | float) else f"{name}={value}"
        for name, value in setting.parameters.items()
    )
    return f"{setting.name} ({values})" if values else setting.name
