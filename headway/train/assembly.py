"""Assembly of a rank's training from its parts: state, checkpoints, membership."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from headway.contract.manifest import Name
from headway.preemption import StopRequest
from headway.storage.stores import open_storage
from headway.train.checkpoint.replica import Replica, Stateful
from headway.train.checkpoint.saving import Saver
from headway.train.checkpoint.store import Checkpoints, Schedule
from headway.train.data.reported_values import ReportedValues
from headway.train.gradients.averaging import Gradients
from headway.train.host.environment import Environment
from headway.train.host.output import warn
from headway.train.membership.changes import Changes
from headway.train.membership.control import Mailbox
from headway.train.membership.standstill import StandstillWatch
from headway.train.membership.team import Team
from headway.train.sharding.template import Parallelize
from headway.train.state.audit import ReplicaAudit
from headway.train.state.sync import StateSync
from headway.train.training import Training


def assemble_training(
    objects: list[Stateful],
    gradients: Gradients,
    *,
    environment: Environment,
    device: torch.device,
    team: Team,
    mailbox: Mailbox,
    stop: StopRequest,
    changes: Changes,
    parallelize: Parallelize | None,
    mesh: Sequence[str],
    local: Sequence[str],
    values: ReportedValues,
    began_s: float,
) -> Training:
    """Return the training of these objects, the model first and its optimizer next. `Run.prepare` describes the errors."""
    replica = Replica(objects, will_shard=parallelize is not None)
    resharder = None
    if parallelize is not None:
        from headway.train.sharding.resharder import Resharder  # noqa: PLC0415  # FSDP takes a second to import

        resharder = Resharder(
            parallelize,
            mesh,
            replica=replica,
            gradients=gradients,
            device=device,
            redundant=environment.redundant,
        )
    elif environment.redundant:
        warn("elastic.redundancy has no effect: prepare() got no `parallelize`, so no rank has parts to copy")
    schedule = Schedule(environment.checkpoint_every_s, time.monotonic(), environment.losses_per_h)
    saver = Saver(_checkpoints(environment), schedule, mailbox)
    has_agent = environment.control is not None
    training = Training(
        replica,
        gradients,
        team=team,
        mailbox=mailbox,
        stop=stop,
        changes=changes,
        saver=saver,
        state_sync=StateSync(replica, team, saver, mailbox, resharder),
        audit=ReplicaAudit.of(
            replica,
            saver,
            wanted=environment.audits or environment.audits_near,
            near=environment.audits_near,
            has_agent=has_agent,
            local=local,
        ),
        values=values,
        began_s=began_s,
    )
    if environment.control is not None or environment.distributed:
        StandstillWatch(
            team, mailbox, training, stop, environment.control, save_s=lambda: saver.save_s
        ).start()
    return training


def _checkpoints(environment: Environment) -> Checkpoints | None:
    if environment.checkpoint_uri is None:
        return None
    return Checkpoints(
        open_storage(environment.checkpoint_uri, environment.storage_keys),
        generation=environment.generation,
        keep=environment.checkpoint_keep,
        reported=Name.parse(environment.checkpoint_name or ""),
    )
