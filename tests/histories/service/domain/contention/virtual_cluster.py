"""A node in virtual time: jobs start, train, change and stop by the decisions of real rounds, which take time to carry out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from benchmarks.contending.history import Happened, Held, Past
from benchmarks.contending.streams import Planned
from headway.contract.views.jobs import JobState, Reason
from service.domain.allocation.decision.plan import Action, Decision, decide
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.contention_rules import ContentionRules
from service.domain.cluster.snapshot import MeasuredRestart, Measurement, Served, SlotKey, Snapshot
from service.domain.cluster.usual_costs import UNMEASURED, UsualCosts
from service.domain.contention.costs import change_s, restart_s
from service.domain.contention.promises import with_promise
from service.domain.contention.rate import IMPOSED, with_imposed_change
from service.domain.jobs.job import Allocation, Job, size_of
from service.domain.policies.registry import policy
from tests.unit.service.builders import NOW, job_of, node_of, snapshot_of, spec_of

SAMPLES = 100.0
"""Samples of a second of work."""
MEASURED_S = 8.0
"""Training time at a size after which its speed is measured."""

PAUSE_S = 0.3
"""Pause of training at a change in place."""


@dataclass
class _Life:
    """Course of one job."""

    planned: Planned
    job: Job
    left_s: float
    events: list[Happened] = field(default_factory=list)
    then_s: float = 0.0
    """Time at which the present start or stop is complete."""
    target: Allocation = field(default_factory=dict)
    pause_s: float = 0.0
    """Seconds for which training still stands still for a change in place."""
    trained_s: float = 0.0
    measured: dict[int, Measurement] = field(default_factory=dict)
    served_s: float = 0.0
    slot_s: float = 0.0

    def speed(self) -> float:
        part = self.planned.part
        return 1.0 / (part + (1.0 - part) / size_of(self.job.allocation))


@dataclass
class VirtualCluster:
    """Node of `slots` slots with a round every `round_s` seconds."""

    slots: int = 4
    round_s: float = 2.0
    start_s: float = 2.0
    stop_s: float = 2.0
    announces: bool = True
    """True if jobs announce their length once they have made a step."""
    lingers: bool = False
    """True if the ranks of an ending job leave their slots one by one, one in each round."""
    policy: str = "goodput"
    rules: ContentionRules = field(default_factory=ContentionRules)
    lives: dict[str, _Life] = field(default_factory=dict)
    held: dict[int, str] = field(default_factory=dict)
    grants: list[Held] = field(default_factory=list)
    open: dict[int, float] = field(default_factory=dict)
    broken: list[tuple[str, float]] = field(default_factory=list)
    """Promises that ended although no job of a higher priority came: the job and the time."""
    story: list[str] = field(default_factory=list)
    usual: UsualCosts = UNMEASURED
    now_s: float = 0.0

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.now_s)

    def play(self, jobs: Sequence[Planned], most_s: float) -> list[Past]:
        """Return the pasts of the jobs; those that have not ended at `most_s` are cancelled."""
        todo = sorted(jobs, key=lambda one: one.at_s)
        while (todo or any(not self._ended(one) for one in self.lives.values())) and self.now_s < most_s:
            while todo and todo[0].at_s <= self.now_s:
                self._submit(todo.pop(0))
            self._round()
            self._advance()
        for life in self.lives.values():
            if not self._ended(life):
                self._happen(life, "cancel")
                self._release(life.job.id)
        return [
            Past(
                name=one.name,
                minimum=one.minimum,
                work_s=one.work_s,
                submitted_s=life.events[0].at_s,
                finished_s=life.events[-1].at_s,
                succeeded=life.events[-1].kind == "succeed",
                events=tuple(life.events),
                priority=one.priority,
            )
            for one in jobs
            if (life := self.lives.get(one.name)) is not None
        ]

    def _ended(self, life: _Life) -> bool:
        return life.job.state is JobState.SUCCEEDED

    def _submit(self, one: Planned) -> None:
        spec = spec_of(
            one.name,
            priority=one.priority,
            elastic={
                "min": one.minimum,
                "max": one.maximum or self.slots,
                "resize": one.resize or "live",
            },
        )
        job = replace(job_of(one.name, spec=spec), submitted_at=self.now, state_since=self.now)
        self.lives[one.name] = life = _Life(planned=one, job=job, left_s=one.work_s)
        self._happen(life, "submit")

    def _happen(
        self, life: _Life, kind: str, reason: Reason | None = None, message: str = "", **data: object
    ) -> None:
        life.events.append(Happened(self.now_s, kind, reason, message, data))
        self.story.append(f"{self.now_s:7.1f} {life.job.id:10} {kind:10} {data or ''} {message}")

    def snapshot(self) -> Snapshot:
        present = [life for life in self.lives.values() if not self._ended(life)]
        return replace(
            snapshot_of([node_of("n", slots=self.slots)]),
            now=self.now,
            jobs={life.job.id: life.job for life in present},
            held={SlotKey("n", slot): name for slot, name in self.held.items()},
            measurements={life.job.id: tuple(life.measured.values()) for life in present if life.measured},
            arrivals=tuple(life.job.submitted_at for life in self.lives.values()),
            restarts=tuple(
                MeasuredRestart(life.job.progress.stop_s, life.job.progress.start_s)
                for life in self.lives.values()
                if self._ended(life)
            ),
            served={life.job.id: Served({"cpu": life.served_s}, life.slot_s) for life in present},
            contention=self.rules,
        )

    def _round(self) -> None:
        snapshot = self.snapshot()
        round_ = build_round(snapshot)
        self.usual = round_.scope.usual
        plan = decide(round_, policy(self.policy), solve)
        for one in sorted(
            plan.decisions,
            key=lambda one: (one.promised is None, one.action not in {Action.VACATE, Action.CHANGE}),
        ):
            self._carry_out(self.lives[one.job_id], one, snapshot)

    def _carry_out(self, life: _Life, one: Decision, snapshot: Snapshot) -> None:
        match one.action:
            case Action.WAIT:
                before = life.job.progress.promise
                life.job = replace(
                    with_promise(life.job, one.promised, self.now, one.stopped_for_it), reason=one.reason
                )
                if before is not None and one.promised is None and not self._overtaken(life, before.at):
                    self.broken.append((life.job.id, self.now_s))
            case Action.START:
                self._start(life, one)
            case Action.VACATE:
                self._impose(life, one, restart_s(life.job, self.usual))
                self._stop(life, one, {})
            case Action.CHANGE:
                self._impose(life, one, change_s(life.job, self.usual))
                if life.job.live:
                    self._change(life, one)
                else:
                    self._grant(life.job.id, one.allocation)
                    self._stop(life, one, one.allocation)
            case _:
                pass

    def _overtaken(self, life: _Life, since: datetime) -> bool:
        return any(
            other.job.spec.priority > life.job.spec.priority and other.job.submitted_at > since
            for other in self.lives.values()
        )

    def _impose(self, life: _Life, one: Decision, cost_s: float) -> None:
        if one.reason in IMPOSED:
            stopped = one.action is Action.VACATE and one.reason is Reason.PREEMPTED
            progress = with_imposed_change(life.job.progress, self.now, cost_s, stopped=stopped)
            life.job = replace(life.job, progress=progress)

    def _start(self, life: _Life, one: Decision) -> None:
        if any(self.held.get(slot) for slot in one.allocation.get("n", ())):
            return  # granted in this round to another job, as the service would find
        update: dict[str, object] = {"promise": None}
        if life.job.state is not JobState.RESIZING:
            update["run_since"] = self.now
        self._grant(life.job.id, one.allocation)
        self._begin(life, one.allocation, update)
        self._happen(life, "allocate", one.reason, one.message, slots=size_of(one.allocation))

    def _begin(self, life: _Life, allocation: Allocation, update: dict[str, object]) -> None:
        life.then_s, life.trained_s = self.now_s + self.start_s, 0.0
        life.job = replace(
            life.job,
            state=JobState.STARTING,
            allocation=allocation,
            target=None,
            live=False,
            state_since=self.now,
            generation=life.job.newest_generation + 1,
            newest_generation=life.job.newest_generation + 1,
            progress=life.job.progress.model_copy(update=update),
        )

    def _stop(self, life: _Life, one: Decision, target: Allocation) -> None:
        before = size_of(life.job.allocation)
        self._happen(life, "vacate", one.reason, one.message, **{"from": before, "to": size_of(target)})
        life.then_s, life.target = self.now_s + self.stop_s, target
        life.job = replace(
            life.job, state=JobState.RESIZING, live=False, target=target or None, state_since=self.now
        )

    def _change(self, life: _Life, one: Decision) -> None:
        sizes = {"from": size_of(life.job.allocation), "to": size_of(one.allocation)}
        self._happen(life, "prepare", one.reason, one.message, **sizes)
        self._happen(life, "switch", one.reason, one.message, **sizes, pause_s=PAUSE_S)
        self._keep_only(life.job.id, one.allocation)
        self._grant(life.job.id, one.allocation)
        life.trained_s, life.pause_s = 0.0, life.pause_s + PAUSE_S
        life.job = replace(
            life.job,
            allocation=one.allocation,
            state_since=self.now,
            progress=life.job.progress.model_copy(update={"pause_s": PAUSE_S}),
            generation=life.job.generation + 1,
            newest_generation=life.job.newest_generation + 1,
        )

    def _advance(self) -> None:
        self.now_s += self.round_s
        for life in self.lives.values():
            job = life.job
            if job.id in self.held.values():
                life.served_s += self.round_s
                life.slot_s += self.round_s * len([one for one in self.held.values() if one == job.id])
            if job.state is JobState.STARTING and self.now_s >= life.then_s:
                self._first_step(life)
            elif job.state is JobState.RESIZING and self.now_s >= life.then_s:
                self._stopped(life)
            elif job.state is JobState.RUNNING and life.left_s <= 0:
                self._leave(life)
            elif job.state is JobState.RUNNING:
                self._train(life)

    def _first_step(self, life: _Life) -> None:
        job = life.job
        update = {"begun_generation": job.generation, "start_s": self.start_s}
        life.job = replace(
            job,
            state=JobState.RUNNING,
            live=life.planned.resize != "restart",
            state_since=self.now,
            progress=job.progress.model_copy(update=update),
        )
        self._happen(life, "first_step")

    def _stopped(self, life: _Life) -> None:
        life.job = replace(life.job, progress=life.job.progress.model_copy(update={"stop_s": self.stop_s}))
        if life.target:
            self._keep_only(life.job.id, life.target)
            self._begin(life, life.target, {})
            self._happen(life, "allocate", slots=size_of(life.target))
            return
        self._release(life.job.id)
        life.job = replace(life.job, state=JobState.PENDING, allocation={}, target=None, state_since=self.now)
        self._happen(life, "requeue")

    def _train(self, life: _Life) -> None:
        job, speed = life.job, life.speed()
        trained_s = max(0.0, self.round_s - life.pause_s)
        life.pause_s = max(0.0, life.pause_s - self.round_s)
        life.left_s -= trained_s * speed
        life.trained_s += trained_s
        update: dict[str, object] = {
            "samples": int(SAMPLES * (life.planned.work_s - life.left_s)),
            "samples_per_s": SAMPLES * speed,
        }
        if self.announces:
            update["total_samples"] = int(SAMPLES * life.planned.work_s)
        life.job = replace(job, progress=job.progress.model_copy(update=update))
        slots = size_of(job.allocation)
        if life.trained_s >= MEASURED_S:
            life.measured[slots] = Measurement(
                "cpu",
                slots,
                SAMPLES * speed,
                50,
                generation=job.generation,
                global_batch=12,
                local_batch=max(1, 12 // slots),
                step_s=12.0 / (SAMPLES * speed),
                step_s_spread=0.0,
            )
        if life.left_s <= 0:
            self._leave(life)

    def _leave(self, life: _Life) -> None:
        own = [slot for slot, holder in self.held.items() if holder == life.job.id]
        if self.lingers and len(own) > 1:
            self._free(own[0])
            return
        self._release(life.job.id)
        life.job = replace(life.job, state=JobState.SUCCEEDED, allocation={})
        self._happen(life, "succeed")

    def _grant(self, name: str, allocation: Allocation) -> None:
        for slot in allocation.get("n", ()):
            assert self.held.get(slot, name) == name, "slots are granted once"
            if slot not in self.held:
                self.held[slot], self.open[slot] = name, self.now_s

    def _keep_only(self, name: str, allocation: Allocation) -> None:
        for slot in [slot for slot, holder in self.held.items() if holder == name]:
            if slot not in allocation.get("n", ()):
                self._free(slot)

    def _release(self, name: str) -> None:
        self._keep_only(name, {})

    def _free(self, slot: int) -> None:
        self.grants.append(Held(slot, self.held.pop(slot), self.open.pop(slot), self.now_s))
