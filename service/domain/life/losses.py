"""Reactions to processes that end, hang or cannot be started, and to nodes that are lost."""

from __future__ import annotations

from dataclasses import replace

from headway.contract.agents import RanksHung, StartFailed
from headway.contract.runtime import EXIT_NEVER_RETRY, EXIT_RETRY
from headway.contract.views.jobs import JobState, Reason
from service.domain.jobs.failures import Ending, RankExit, ending_of, how_it_ended, judge, reason_of_loss
from service.domain.jobs.job import Job
from service.domain.jobs.lifecycle import JobEvent, allows
from service.domain.jobs.membership import Born, Crew, has_finished
from service.domain.jobs.survival import is_loss
from service.domain.life.changes import dismiss_newcomers, give_up
from service.domain.life.life import HostFacts, Life
from service.domain.life.starts import fail_rank
from service.domain.life.survivals import newcomers_beside, survive_loss, survive_newcomers
from service.domain.life.unreached import note_unreached

_MOST_CHARACTERS = 16_384
"""Maximum characters of all stacks in one event. The logs have the full stacks."""
_SHOWN_RANKS = 4
_SHOWN_LINES = 8
"""Lines of each rank's stacks in the event's text. The innermost frames of its main thread come first."""


def rank_ended(life: Life, who: Born, exit_: RankExit) -> Life:
    """React to the end of a process whose exit is already part of the life.

    An exit that was not requested and does not complete the training is a loss: the other ranks survive it,
    or the rest of the job is stopped. The ranks that trained before a growth survive an error of its new ranks, too.
    """
    job, crew = life.job, life.crew
    member = crew.member(who)
    assert member is not None, f"{who} is none of {job.id}"
    exit_ = replace(exit_, rank=member.rank)
    verdict = judge([exit_])
    said = verdict.message
    if verdict.reason is Reason.UNREACHABLE:
        life, said = note_unreached(life, member.node_id, said)
    switch = job.switching
    if switch is not None and not switch.ordered and crew.is_newcomer(who):
        why = f"a new rank failed: {said}"
        return give_up(life, reason=verdict.reason, why=why, blame=True)
    if _went_as_ordered(job, crew, who):
        return life
    if verdict.ending is Ending.DONE:
        finished = job.switching is not None and has_finished(crew, life.loaded_footprint.exits)
        return dismiss_newcomers(life) if finished else life
    failed = verdict.ending is not Ending.STOPPED and not is_loss(exit_)
    if failed and _survives(job) and newcomers_beside(life, who):
        return survive_newcomers(life, who, reason=verdict.reason, why=f"a new rank failed: {said}")
    if is_loss(exit_) and _survives(job):
        message = f"rank {exit_.rank} {how_it_ended(exit_)}"
        return survive_loss(life, reason=reason_of_loss(exit_), message=message)
    if not _is_failure(job, verdict.ending) or not allows(job.state, JobEvent.FAIL_RANK):
        return life
    return fail_rank(life, reason=verdict.reason, message=said)


def _survives(job: Job) -> bool:
    """Return True if the remaining ranks can go on in place after a loss, and the job is not being stopped."""
    return job.survives_losses and (job.state is JobState.RUNNING or job.switching is not None)


def _went_as_ordered(job: Job, crew: Crew, who: Born) -> bool:
    """Return True if the end of the process was expected: it had left, or was already counted as lost."""
    switch = job.switching
    return switch is not None and crew.is_leaver(who) and (switch.lost or who in switch.left)


def _is_failure(job: Job, ending: Ending) -> bool:
    asked_to_stop = job.state not in {JobState.STARTING, JobState.RUNNING} and job.switching is None
    if ending is Ending.STOPPED:
        return not asked_to_stop
    # A stop reaches one node before another: ranks of a plain script on the later node first lose their
    # peers.
    peers_were_stopped = ending is Ending.USER_ERROR and job.state is JobState.RESIZING and asked_to_stop
    return not peers_were_stopped


def start_failed(life: Life, host: HostFacts, entry: StartFailed) -> Life:
    """React to an agent that could not start its ranks of a generation."""
    who = next((who for who in life.crew.on_node(host.id) if who[0] == entry.generation), None)
    if who is None:
        return life
    exit_ = RankExit(
        rank=who[1],
        exit_code=EXIT_RETRY if entry.retryable else EXIT_NEVER_RETRY,
        signal=None,
        stopped_by_agent=False,
        completed=False,
        start_error=f"{entry.message} (node {host.name})",
    )
    return rank_ended(life.with_exit(entry.generation, exit_), who, exit_)


def node_ended(life: Life, node_id: str, message: str) -> Life:
    """React to the loss of a node: store exits for its processes, and release its slots as far as the job is
    concerned.

    The caller goes on with `go_on` if slots were freed and the job is gone.
    """
    crew, exits = life.crew, life.loaded_footprint.exits
    gone = [
        who for who in crew.on_node(node_id) if who not in exits or ending_of(exits[who]) is not Ending.DONE
    ]
    for generation, rank in gone:
        unseen = RankExit(rank=rank, exit_code=None, signal=None, stopped_by_agent=False, completed=False)
        life = life.with_exit(generation, unseen)
    for generation in tuple(life.loaded_footprint.held):
        if generation <= life.job.newest_generation:
            life = life.released(generation, node_id)
    targeted = life.job.target is not None and node_id in life.job.target
    lost = [who for who in gone if not _went_as_ordered(life.job, crew, who)]
    if not lost and not targeted:
        return life
    switch = life.job.switching
    if switch is not None and not switch.ordered and all(crew.is_newcomer(who) for who in lost):
        return give_up(life, reason=Reason.NODE_LOST, why=message, blame=False)
    if _survives(life.job):
        return survive_loss(life, reason=Reason.NODE_LOST, message=message)
    return fail_rank(life, reason=Reason.NODE_LOST, message=message)


def ranks_hung(life: Life, host: HostFacts, entry: RanksHung) -> Life:
    """Restart a job whose ranks on the node have taken no step for long.

    It is unknown which rank keeps the others waiting. All of them restart, and each writes its stacks to its
    log.

    Nothing happens if these ranks do not train now, or if an order already stops or changes the job: a stop
    has its grace period, an order its deadline.
    """
    job = life.job
    trains = job.state is JobState.RUNNING or (job.switching is not None and not job.switching.ordered)
    running = {(one.born_generation, one.node_id) for one in life.crew.running}
    if not trains or (entry.generation, host.id) not in running:
        return life
    message = f"{_what_was_seen(entry)} (node {host.name})"
    data = {
        "node": host.name,
        "silent_s": entry.silent_s,
        "usual_s": entry.usual_s,
        "stacks": _bounded(entry.stacks),
    }
    text = "\n".join([message, *_first_frames(entry)])
    life = life.noted("hung", reason=Reason.HUNG, message=text, data=data)
    why = f"{message}; the logs show the stacks of its threads"
    return fail_rank(life, reason=Reason.HUNG, message=why, dump_stacks=True)


def _what_was_seen(entry: RanksHung) -> str:
    silence = _seconds(entry.silent_s)
    if entry.usual_s > 0:
        return f"no step for {silence}, although a step usually takes {_seconds(entry.usual_s)}"
    return f"no sign of training for {silence}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def _first_frames(entry: RanksHung) -> list[str]:
    """Return the first lines of each rank's stacks, which show where its main thread is."""
    return [line for stacks in entry.stacks[:_SHOWN_RANKS] for line in stacks.splitlines()[:_SHOWN_LINES]]


def _bounded(stacks: list[str]) -> list[str]:
    """Shorten each stack to its share of the limit."""
    each = _MOST_CHARACTERS // max(1, len(stacks))
    return [one[:each] for one in stacks]
