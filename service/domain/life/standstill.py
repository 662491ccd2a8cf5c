"""Standstills of training whose ranks wait for each other, as the ranks report them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from headway.contract.run_facts import Standstill
from headway.contract.runtime import StandsStill
from headway.contract.values.quantities import duration
from headway.contract.views.jobs import JobState
from service.domain.jobs.status import standstill_text
from service.domain.life.effects import RefreshPages
from service.domain.life.life import Life

_MOST_PAIRS = 64


def stands_still(life: Life, node_id: str, message: StandsStill) -> Life:
    """Return the life after a rank on the node reported a standstill, or its end.

    An event records the begin, the first pair of hosts that do not answer, and the end. Nothing happens while the job stops
    or recovers, because its ranks then take no steps.
    """
    if life.job.state is not JobState.RUNNING and life.job.switching is None:
        return life
    before = life.job.progress.standstill
    if before is not None and before.generation != message.generation:
        before = None
    if message.over:
        return life if before is None else _ended(life, message)
    unanswered = sorted({*(before.unanswered if before else ()), *_pairs(life, node_id, message)})[
        :_MOST_PAIRS
    ]
    silent_s = min(message.silent_s, max(0.0, (life.now - life.job.submitted_at).total_seconds()))
    after = Standstill(
        generation=message.generation,
        since=before.since if before else life.now - timedelta(seconds=silent_s),
        usual_s=message.usual_s,
        unanswered=unanswered,
    )
    if after == before:
        return life
    life = _with(life, after)
    if before is not None and (before.unanswered or not unanswered):
        return life
    silent_s = (life.now - after.since).total_seconds()
    data = {"silent_s": silent_s, "usual_s": after.usual_s, "unanswered": unanswered}
    return life.noted("standstill", message=standstill_text(after, silent_s), data=data)


def _ended(life: Life, message: StandsStill) -> Life:
    text = f"training goes on after {duration(message.silent_s)} without a step"
    data = {"silent_s": message.silent_s, "usual_s": message.usual_s}
    return _with(life, None).noted("standstill_ended", message=text, data=data)


def _with(life: Life, standstill: Standstill | None) -> Life:
    progress = life.job.progress.model_copy(update={"standstill": standstill})
    return life.with_job(replace(life.job, progress=progress)).having(RefreshPages())


def _pairs(life: Life, node_id: str, message: StandsStill) -> set[tuple[str, str]]:
    hosts = life.loaded_footprint.hosts
    names = {host.address: host.name for host in hosts.values()}
    node = hosts[node_id].name if node_id in hosts else node_id
    return {(node, names.get(address, address)) for address in message.unanswered[:_MOST_PAIRS]}
