"""One fault run: start a cluster, execute the plan, wait for all jobs to end, and collect the evidence."""

from __future__ import annotations

import heapq
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.faulting import remains
from benchmarks.faulting.evidence import (
    Ending,
    Left,
    Life,
    Result,
    Sealed,
    Sighting,
    Submission,
    read_journal,
    read_result,
)
from benchmarks.faulting.harm import Harm, missing
from benchmarks.faulting.histories import Call, History, Operation, seen_of
from benchmarks.faulting.plan import Fault, make_plan
from benchmarks.faulting.record import Record
from benchmarks.faulting.rig import Rig, Shape, answers
from benchmarks.faulting.users import SCRIPTS, SEEDS, Users, first_actions, set_free
from benchmarks.faulting.watching import Watcher
from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.views.jobs import JobState, JobView
from headway.errors import HeadwayError
from worker_agent.host.folders import boot_s

_ANSWERS_S = 90.0
"""Seconds after the last fault for which users wait for missing answers."""
_TIDY_S = 75.0
"""Seconds within which agents tidy up, which they do once a minute."""
_LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Order:
    """Parameters of a run."""

    seed: int
    minutes: float
    faults: int
    jobs: int
    """Jobs submitted during the run, besides `first_jobs` and those that a kind of fault needs."""
    first_jobs: int = 5
    epochs: int = 70
    settle_s: float = 600.0
    """Seconds after the last fault within which every job must end."""
    shape: Shape = field(default_factory=Shape)


@dataclass
class Evidence:
    """Outside evidence of a run."""

    submissions: list[Submission] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    sealed: list[Sealed] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    undisturbed: dict[int, Result] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    """Jobs of which a rank recorded its end."""
    steps_taken: int = 0
    left: list[Left] = field(default_factory=list)
    audits: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    """Audits of the library by job: number of exact epochs, and number of audited epochs."""
    faults: Counter[str] = field(default_factory=Counter)
    without: list[str] = field(default_factory=list)
    storage: str = ""
    recovered_s: float | None = None
    """Seconds from the end of the last fault until every node took jobs and every job with slots trained."""
    settled_s: float | None = None
    """Seconds from the end of the last fault until the last job had ended."""
    starts: dict[str, int] = field(default_factory=dict)
    history: list[Operation] = field(default_factory=list)
    """Operations of all clients on jobs."""


def carry_out(order: Order, folder: Path, keep: Callable[[], None]) -> Evidence:
    """Run a cluster, execute the plan, wait until all jobs have ended, and collect the evidence.

    `keep` is called after the cluster has stopped, while all its files exist.
    """
    journals = folder / "journals"
    journals.mkdir()
    record = Record(folder / "record.jsonl")
    evidence = Evidence()
    aside = ThreadPoolExecutor(1)
    undisturbed = aside.submit(run_undisturbed, folder, order.epochs)
    rig = Rig(folder, order.shape, record.note)
    try:
        with rig:
            history = History(boot_s)
            watcher = Watcher(journals, rig.storage.folder, rig.client(patience_s=0), history)
            watcher.start()
            # Without retries of the client, each attempt is an operation of the history.
            users = Users(partial(rig.client, patience_s=0), journals, order.epochs, record.note, history)
            try:
                _disturb(order, rig, watcher, users, record, evidence)
                _settle(order, rig, users, history, record, evidence)
                evidence.submissions = users.submissions()
                _collect(rig, watcher, journals, history, evidence)
            finally:
                watcher.stop()
            evidence.history = history.operations
        evidence.undisturbed = undisturbed.result()
        evidence.left += remains.of_cluster(folder)
    finally:
        aside.shutdown()
        record.note("end", starts=evidence.starts, left=[asdict(one) for one in evidence.left])
        record.close()
        keep()
        rig.close()
    return evidence


def run_undisturbed(folder: Path, epochs: int) -> dict[int, Result]:
    """Return the result of each training, by seed, when it runs alone without a cluster."""
    results = {}
    for seed in SEEDS:
        kept = folder / f"undisturbed-{seed}"
        env = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
        env |= {"HEADWAY_CHECKPOINT_URI": kept.as_uri(), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(SCRIPTS / "counted.py"), str(epochs), str(seed), "0"]
        subprocess.run(command, env=env, cwd=SCRIPTS, check=True, stdout=subprocess.DEVNULL)
        result = read_result(kept)
        assert result is not None, "a successful run has a checkpoint"
        results[seed] = result
    return results


def _disturb(
    order: Order, rig: Rig, watcher: Watcher, users: Users, record: Record, evidence: Evidence
) -> None:
    """Execute the plan."""
    without = missing(rig)
    evidence.without = [str(kind) for kind in without]
    evidence.storage = rig.storage.how
    plan = make_plan(
        order.seed,
        minutes=order.minutes,
        faults=order.faults,
        lease_s=order.shape.lease_s,
        without=without,
        jobs=order.jobs,
    )
    harm, numbers = Harm(rig, watcher, record.note), itertools.count()
    due: list[tuple[float, int, Callable[[], object]]] = []

    def at(at_s: float, do: Callable[[], object]) -> None:
        heapq.heappush(due, (at_s, next(numbers), do))

    def hurt(fault: Fault) -> None:
        done = harm.do(fault)
        record.note("fault", fault=asdict(fault), whom=done and done.target)
        if done is None:
            return
        evidence.faults[fault.kind] += 1
        if done.undo is not None:
            undo = done.undo
            at(fault.at_s + fault.lasts_s, lambda: heal(fault, undo))

    def heal(fault: Fault, undo: Callable[[], None]) -> None:
        undo()
        record.note("healed", kind=fault.kind)

    for action in [*first_actions(order.seed, order.first_jobs), *plan.actions]:
        at(action.at_s, partial(users.do, action))
    for fault in plan.faults:
        at(fault.at_s, partial(hurt, fault))
    began = time.monotonic()
    while due:
        at_s, _, do = heapq.heappop(due)
        time.sleep(max(0.0, began + at_s - time.monotonic()))
        do()
    rig.heal()


def _settle(
    order: Order, rig: Rig, users: Users, history: History, record: Record, evidence: Evidence
) -> None:
    """Revert the actions of users, and wait until all jobs have ended, for at most `settle_s`."""
    began = time.monotonic()
    record.note("settling")
    users.finish(_ANSWERS_S)
    trained: dict[str, int] = {}
    with rig.client(patience_s=5.0) as client:
        while evidence.settled_s is None and time.monotonic() - began < order.settle_s:
            try:
                living = set_free(client, history)
                well = _is_well(client, order.shape.agents)
            except HeadwayError as error:
                record.note("not_yet", error=str(error))
            else:
                passed_s = round(time.monotonic() - began, 1)
                all_train = all(
                    _trains(job, trained.setdefault(job.id, job.progress.samples)) for job in living
                )
                if well and all_train and evidence.recovered_s is None:
                    evidence.recovered_s = passed_s
                if well and not living:
                    evidence.settled_s = passed_s
            time.sleep(_LOOK_EVERY_S)
    record.note("settled", recovered_s=evidence.recovered_s, settled_s=evidence.settled_s)


def _trains(job: JobView, samples: int) -> bool:
    """Return True if a job with slots has trained beyond `samples`. A plain job only has to run."""
    if job.size == 0:
        return True
    if job.progress.total_samples is None:
        return job.state is JobState.RUNNING
    return job.progress.samples > samples


def _is_well(client: Client, agents: int) -> bool:
    ready = [node for node in client.nodes() if node.state is NodeState.READY]
    return len(ready) == agents and answers(client)


def _collect(rig: Rig, watcher: Watcher, journals: Path, history: History, evidence: Evidence) -> None:
    def left() -> list[Left]:
        agents = {rig.agent_state(name): rig.tcp_tables(name) for name in rig.names("agent")}
        return remains.of_jobs(watcher.living(), agents)

    give_up = time.monotonic() + _TIDY_S
    evidence.left = left()
    while evidence.left and evidence.settled_s is not None and time.monotonic() < give_up:
        time.sleep(_LOOK_EVERY_S)
        evidence.left = left()
    with rig.client() as client:
        began_s = boot_s()
        for job in client.jobs():
            history.add(Operation(job.name, Call.READ, began_s, boot_s(), seen_of(job)))
            evidence.endings.append(Ending(job.id, job.name, str(job.state), job.message))
            evidence.audits[job.id] = (job.progress.epochs_exact, job.progress.epochs_audited)
    for submission in evidence.submissions:
        if submission.job is None or submission.script != "counted":
            continue
        result = read_result(rig.storage.folder / "checkpoints" / submission.job)
        if result is not None:
            evidence.results[submission.job] = result
    for journal in journals.iterdir():
        facts = list(read_journal(journal))
        evidence.steps_taken += sum(fact["kind"] == "step" for fact in facts)
        if facts and facts[-1]["kind"] == "end":
            evidence.finished.add(facts[0]["job"])
    evidence.lives, evidence.sealed = watcher.lives(), list(watcher.sealed.values())
    evidence.sightings, evidence.starts = watcher.sightings, rig.starts()


def save(evidence: Evidence, path: Path) -> None:
    """Write the evidence without the tables to a file."""
    names = ("submissions", "endings", "lives", "sealed", "sightings", "left", "history")
    kept = {name: [asdict(one) for one in getattr(evidence, name)] for name in names}
    path.write_text(json.dumps({**kept, "audits": evidence.audits}, indent=1), encoding="utf-8")
