"""What if: the live cluster as it is, and with changes, played through side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from headway.contract.simulations import SimulationRequest, SimulationResult
from service.domain.arrays import FloatArray
from service.domain.cluster import PolicySetting, Snapshot
from service.domain.errors import InvalidField
from service.domain.policies.policy import Policy
from service.domain.policies.registry import DEFAULT, policy
from service.simulation.changes import Changed, settings_of, with_changes
from service.simulation.engine import replay
from service.simulation.outcomes import Runs, comparisons, differences, outcome_of
from service.simulation.snapshots import Picture, drawn, picture_of
from service.simulation.world import JobRows, World

_S_PER_H = 3600.0
BASELINE = "as it is"
"""The label of the cluster without changes."""


def compare(
    snapshot: Snapshot,
    request: SimulationRequest,
    ended_samples: Mapping[str, Sequence[float]],
    *,
    on_progress: Callable[[float], None] = lambda _: None,
) -> SimulationResult:
    """What becomes of the cluster as it is, and with the changes under each of the policies.

    `ended_samples` are what ended jobs took in samples, by class; `on_progress` is called with the part that is done, from
    0 to 1. The same snapshot and request have the same result. Raises InvalidField for changes that cannot be made.
    """
    changed = with_changes(snapshot, request.changes)
    settings = settings_of(changed.snapshot, request.policies)
    horizon_s = request.horizon_s
    before = picture_of(Changed(snapshot=snapshot), ended_samples, horizon_s=horizon_s)
    after = picture_of(changed, ended_samples, horizon_s=horizon_s) if request.changes else before
    cases = [(BASELINE, before, snapshot.policy), *((_label(one), after, one) for one in settings)]
    found = []
    for index, (label, picture, setting) in enumerate(cases):
        rows = []
        for seed in range(request.seeds):
            tell = partial(_tell, on_progress, index * request.seeds + seed, len(cases) * request.seeds)
            world = drawn(picture, seed)
            if setting != snapshot.policy:
                # As in the live cluster: another setting remembers nothing.
                world = replace(world, policy_state={})
            rows.append(_rows(world, _policy(setting), tell))
        found.append(_runs(label, setting, picture, rows))
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
        warnings=list(dict.fromkeys([*before.warnings, *after.warnings])),
    )


def _tell(on_progress: Callable[[float], None], done: int, runs: int, part: float) -> None:
    """So many of the runs are done, and a part of the next one."""
    on_progress((done + part) / runs)


def _rows(world: World, follows: Policy, on_progress: Callable[[float], None]) -> JobRows | None:
    """What becomes of the jobs of a world; None where it has none."""
    return replay(world, follows, on_progress=on_progress).jobs if world.arrivals else None


def _runs(label: str, setting: PolicySetting, picture: Picture, rows: Sequence[JobRows | None]) -> Runs:
    submits_s = np.array([max(0.0, one.submit_s) for one in picture.world.arrivals])
    shape = (len(rows), len(submits_s))

    def stacked(name: str) -> FloatArray:
        return np.array([getattr(one, name) for one in rows if one is not None], np.float64).reshape(shape)

    return Runs(
        label=label,
        setting=setting,
        ids=tuple(one.id for one in picture.world.arrivals),
        names=picture.names,
        endless=picture.endless,
        submit_s=submits_s,
        start_s=np.maximum(stacked("start_s"), submits_s),
        end_s=stacked("end_s"),
        usd=stacked("usd"),
        slot_h=stacked("served_slot_s") / _S_PER_H,
        changes=stacked("changes"),
        slots=sum(kind.slots for kind in picture.world.kinds),
    )


def _label(setting: PolicySetting) -> str:
    """A policy with the parameters that differ from its own."""
    values = ", ".join(
        f"{name}={value:g}" if isinstance(value, int | float) else f"{name}={value}"
        for name, value in setting.parameters.items()
    )
    return f"{setting.name} ({values})" if values else setting.name


def _policy(setting: PolicySetting) -> Policy:
    """The default, as in rounds, where the cluster's setting is one that this version does not know."""
    try:
        return policy(setting.name, setting.parameters)
    except InvalidField:
        return policy(DEFAULT)
