"""Worlds from job streams, which are checked before the replay starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from service.domain.policies.framework.policy import Configurations
from service.simulation.inputs.streams import Submission
from service.simulation.model.clusters import configurations_of
from service.simulation.model.laws import Law, application_of
from service.simulation.model.profiles import read_application
from service.simulation.model.world import Application, Arrival, BadInput, ClusterRules, Kind, World


def world_of(
    file: Path,
    stream: Sequence[Submission],
    kinds: Sequence[Kind],
    *,
    law: Law,
    profiles: Path | None = None,
    rules: ClusterRules | None = None,
    seed: int = 0,
    declares_length: bool = True,
    mix: bool = False,
) -> World:
    """Return the world with the jobs of a stream, read from `file`, on these kinds. Raise BadInput.

    A job that names an application runs according to its profiles (a folder for each application in
    `profiles`). Any other job follows the law, scaled so that it takes its recorded time on its recorded
    slots. Jobs that can never run are in `rejected`. With `mix`, every job may have slots of two kinds at once;
    jobs without profiles then have no speed there.
    """
    configurations = configurations_of(kinds, mix=mix)
    _fit(file, stream, sum(kind.slots for kind in kinds))
    applications = _applications(file, stream, configurations, law, profiles)
    order = {name: index for index, name in enumerate(applications)}
    tables = tuple(applications.values())
    rejected = [(job.id, job.never) for job in stream if job.never is not None]
    arrivals: list[Arrival] = []
    for job in stream:
        index = order[job.application or ""]
        if job.never is None and not (tables[index].goodput > 0).any():
            rejected.append((job.id, f"no configuration of this cluster was measured for {job.application}"))
        elif job.never is None:
            speedup = float(law(np.array([float(job.slots)]))[0])
            arrivals.append(
                Arrival(
                    id=job.id,
                    submit_s=job.submit_s,
                    application=index,
                    requested_slots=job.slots,
                    work=None if job.duration_s is None else job.duration_s * speedup,
                    declares_length=declares_length,
                )
            )
    return World(
        kinds=tuple(kinds),
        configurations=configurations,
        applications=tables,
        arrivals=tuple(arrivals),
        rejected=tuple(rejected),
        rules=rules or ClusterRules(),
        seed=seed,
    )


def _fit(file: Path, stream: Sequence[Submission], slots: int) -> None:
    for job in stream:
        if job.slots > slots:
            raise BadInput(
                f"{file}: row {job.row}, column {job.slots_column}: {job.id} asks for {job.slots} slots, "
                f"and the cluster has {slots}"
            )


def _applications(
    file: Path,
    stream: Sequence[Submission],
    configurations: Configurations,
    law: Law,
    profiles: Path | None,
) -> dict[str, Application]:
    """Return the applications that the stream names, in order. The application of jobs without one has the name ''."""
    if profiles is not None and not profiles.is_dir():
        raise BadInput(f"{profiles}: is not a folder of profiles")
    found: dict[str, Application] = {}
    known = sorted(one.name for one in profiles.iterdir() if one.is_dir()) if profiles else []
    for job in sorted(stream, key=lambda job: (job.application or "", job.row)):
        name = job.application
        if name is None:
            found.setdefault("", application_of(law, configurations))
        elif name not in found:
            if profiles is None or name not in known:
                known_names = f"known are {', '.join(known)}" if known else "give a folder with its profiles"
                raise BadInput(
                    f"{file}: row {job.row}, column application: {name!r} has no profiles; {known_names}"
                )
            found[name] = read_application(profiles / name, configurations)
    return found
