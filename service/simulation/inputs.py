"""From files to a world, with everything checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from service.domain.policies.policy import Configurations
from service.simulation.clusters import configurations_of, read_cluster
from service.simulation.laws import LawOfJobs
from service.simulation.profiles import read_application
from service.simulation.streams import Submission, read_stream
from service.simulation.world import Application, Arrival, BadInput, Kind, Rules, World


def read_world(
    jobs: Path,
    cluster: Path,
    *,
    law: LawOfJobs,
    profiles: Path | None = None,
    rules: Rules | None = None,
    seed: int = 0,
    declares_length: bool = True,
) -> World:
    """The jobs of a file on the cluster of a file. Raises BadInput.

    Jobs that name an application run as its profiles say (a folder for each in `profiles`), the others by the law:
    each so that it takes as long as it took on as many slots as it had. Jobs that can never run are in `rejected`.
    """
    kinds = read_cluster(cluster)
    return world_of(
        jobs,
        read_stream(jobs),
        kinds,
        law=law,
        profiles=profiles,
        rules=rules,
        seed=seed,
        declares_length=declares_length,
    )


def world_of(
    file: Path,
    stream: Sequence[Submission],
    kinds: Sequence[Kind],
    *,
    law: LawOfJobs,
    profiles: Path | None = None,
    rules: Rules | None = None,
    seed: int = 0,
    declares_length: bool = True,
) -> World:
    """The same of a stream that was read from a file, on these kinds."""
    configurations = configurations_of(kinds)
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
            speedup = float(law.law(np.array([float(job.slots)]))[0])
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
        rules=rules or Rules(),
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
    law: LawOfJobs,
    profiles: Path | None,
) -> dict[str, Application]:
    """Those that the stream names, in order; jobs without one have the name ''."""
    if profiles is not None and not profiles.is_dir():
        raise BadInput(f"{profiles}: is no folder of profiles")
    found: dict[str, Application] = {}
    known = sorted(one.name for one in profiles.iterdir() if one.is_dir()) if profiles else []
    for job in sorted(stream, key=lambda job: (job.application or "", job.row)):
        name = job.application
        if name is None:
            found.setdefault("", law.application("job", configurations))
        elif name not in found:
            if profiles is None or name not in known:
                there = f"there are profiles of {', '.join(known)}" if known else "give a folder of profiles"
                raise BadInput(f"{file}: row {job.row}, column application: {name!r} is not known; {there}")
            found[name] = read_application(profiles / name, configurations)
    return found
