"""A state machine over sentences: what a round and `explain` say of a job is true of the cluster that they describe."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from headway.contract.spec import Resize
from headway.contract.views.jobs import ExplainView, JobState, Reason, SizeOption
from service.domain.allocation.decision.plan import Action, Decision, Plan
from service.domain.allocation.decision.plan import decide as decide_round
from service.domain.allocation.inputs.round import build_round
from service.domain.allocation.knapsack.solver import solve
from service.domain.cluster.snapshot import Measurement, SlotKey, Snapshot
from service.domain.contention.rate import with_imposed_change
from service.domain.jobs.job import Allocation, Job, size_of
from service.domain.jobs.status import LastDecision, present_reason
from service.domain.policies.goodput import Goodput
from service.usecases.jobs.explanations import as_of_now
from tests.unit.service.builders import NOW, node_of, snapshot_of
from tests.unit.service.domain.allocation.scopes import elastic_job

RUNNING, PENDING = JobState.RUNNING, JobState.PENDING


def size(snapshot: Snapshot, job: Job) -> int:
    return len(snapshot.slots_held_by(job.id))


def holders(snapshot: Snapshot) -> list[Job]:
    return [job for job in snapshot.jobs.values() if size(snapshot, job)]


def beyond_minimum(snapshot: Snapshot, job: Job) -> int:
    return max(0, size(snapshot, job) - min(job.spec.allowed_sizes()))


def fixed(snapshot: Snapshot, job: Job) -> bool:
    never = job.spec.elastic.resize is Resize.NEVER
    return job.state is RUNNING and (never or job.pinned_size == size(snapshot, job))


def found(pattern: str, text: str) -> list[str]:
    """The groups of a pattern of which a text has at most one match; none without a match."""
    match = re.search(pattern, text)
    return [] if match is None else list(match.groups())


def names(text: str) -> list[str]:
    return re.findall(r"\bj\d+\b", text)


def check_wait(snapshot: Snapshot, plan: Plan, job: Job, text: str) -> None:
    held = holders(snapshot)
    free = set(snapshot.free)
    for one in plan.decisions:
        free -= set(keys_of(one.allocation))
    spare = sum(beyond_minimum(snapshot, one) for one in held if one.state is RUNNING)
    for least in found(r"^needs at least (\d+) slots?;", text):
        assert int(least) == min(job.sizes)
    (left,) = found(r", and (\d+) of 6 are left", text) or ["0"]
    assert int(left) <= len(free), "slots that are kept for another job are not left either"
    for part in found(r"; held by ([^;]*)", text):
        assert {(name, int(count)) for name, count in re.findall(r"(j\d+) \((\d+)\)", part)} <= {
            (one.name, size(snapshot, one)) for one in held
        }
    if "no running job holds more than its minimum" in text:
        assert spare == 0
    if "their sizes are fixed" in text:
        assert all(fixed(snapshot, one) for one in held)
    for part in found(r"; ([^;]*) more than (?:its|their) minimums? and (?:is|are) fixed in size", text):
        assert all(
            beyond_minimum(snapshot, one) and fixed(snapshot, one) for one in held if one.name in names(part)
        )
    for part in found(r"it is decided again once ([^;]*)", text):
        assert names(part)
        assert all(one.state is not RUNNING for one in held if one.name in names(part))
    for beyond in found(r"running jobs have (\d+) slots? beyond their minimums", text):
        elastic = [one for one in held if one.state is RUNNING and not fixed(snapshot, one)]
        assert int(beyond) == sum(beyond_minimum(snapshot, one) for one in elastic)
        assert ("too few" in text) == (int(beyond) + int(left) < min(job.sizes))
    if "higher priorities first" in text:
        assert any(one.spec.priority > job.spec.priority for one in snapshot.jobs.values())
    for part in found(r"slots are kept for (j\d+)", text):
        assert [one.name for one in snapshot.jobs.values() if one.name == part and not size(snapshot, one)]
    for part in found(r"as soon as ([^;]*) ha(?:s|ve) released them", text):
        leaving = {one.job_id for one in plan.decisions if one.action in {Action.VACATE, Action.CHANGE}}
        leaving |= {one.id for one in held if one.state is not RUNNING}
        assert names(part)
        assert set(names(part)) <= leaving


def check_running(snapshot: Snapshot, plan: Plan, job: Job, one: Decision) -> None:
    held, then = size(snapshot, job), size_of(one.allocation)
    for slots in found(r"^fixed at (\d+)", one.message):
        assert job.pinned_size == held == int(slots)
    for slots in found(r"^(\d+) cpu slots?: optimal", one.message):
        assert int(slots) == held
    for before, after in [found(r"^from (\d+) cpu slots? to (\d+) cpu slot", one.message) or [held, then]]:
        assert (int(before), int(after)) == (held, then) or one.action is not Action.CHANGE
    if "makes room" in one.message and one.action is Action.CHANGE:
        others = [each for each in plan.decisions if each.job_id != job.id]
        assert then < held
        assert any(_gains(snapshot, each) for each in others), one.message
    for now, next_, source in [found(r"([\d,]+) -> ([\d,]+) samples/s (\w+)", one.message) or ["0", "0", ""]]:
        assert int(now.replace(",", "")) <= int(next_.replace(",", "")) or "tries it" in one.message
        sizes = {each.slots for each in snapshot.measurements.get(job.id, ())}
        assert source != "measured" or {held, then} <= sizes
    if one.action is Action.VACATE and one.reason is Reason.PREEMPTED:
        check_heirs(snapshot, plan, job, one.message)


def _gains(snapshot: Snapshot, one: Decision) -> bool:
    held = len(snapshot.slots_held_by(one.job_id))
    return size_of(one.allocation) > held or bool(one.promised)


def check_heirs(snapshot: Snapshot, plan: Plan, job: Job, text: str) -> None:
    heirs = re.findall(
        r"(j\d+) \(priority (\d+) against (\d+), (?:gains [\d,]+ samples/s|its gain is not)", text
    )
    assert heirs, text
    decided = {one.job_id: one for one in plan.decisions}
    for name, priority, own in heirs:
        assert snapshot.jobs[name].spec.priority == int(priority)
        assert job.spec.priority == int(own)
        assert decided[name].action is not Action.VACATE
        assert _gains(snapshot, decided[name])


def check_options(snapshot: Snapshot, job: Job, options: tuple[SizeOption, ...]) -> None:
    measured = {one.slots for one in snapshot.measurements.get(job.id, ())}
    for option in options:
        assert option.note != "current" or option.slots == size(snapshot, job)
        assert option.one_slot_measured == (1 in measured), "no class has ended here"
        assert not option.measured or option.slots in measured
        for ago_s, until_s in [
            found(r"changed (\d+) s ago; a change waits until (\d+) s", option.note) or [0, 1]
        ]:
            assert int(ago_s) < int(until_s)


class Sentences(RuleBasedStateMachine):
    """Jobs come, end, are fixed in size and train, and rounds decide about them. Every round's sentences are checked."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshot = snapshot_of([node_of("n", slots=4), node_of("m", slots=2)])
        self.decided: dict[str, Decision] = {}
        self.exponents: dict[str, float] = {}
        self.submitted = 0

    def put(self, job: Job, keys: list[SlotKey] | None = None) -> None:
        """Store a job, and the slots that it holds from now on."""
        held = dict(self.snapshot.held)
        if keys is not None:
            held = {key: holder for key, holder in held.items() if holder != job.id}
            held |= dict.fromkeys(keys, job.id)
        self.snapshot = replace(self.snapshot, jobs={**self.snapshot.jobs, job.id: job}, held=held)

    @rule(
        sizes=st.sampled_from([(1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (3, 6)]),
        priority=st.sampled_from([30, 50, 90]),
        resize=st.sampled_from(["live", "live", "restart", "never"]),
        exponent=st.sampled_from([0.0, 0.5, 1.0, -0.5]),
    )
    def submit(self, sizes: tuple[int, int], priority: int, resize: str, exponent: float) -> None:
        if len(self.snapshot.jobs) < 6:
            low, high = sizes
            elastic = {"resize": resize}
            job = elastic_job(f"j{self.submitted}", low, high, priority=priority, elastic=elastic, age_s=0.0)
            self.put(replace(job, submitted_at=self.snapshot.now, state_since=self.snapshot.now))
            self.exponents[job.id] = exponent
            self.submitted += 1

    @precondition(lambda self: self.snapshot.jobs)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.snapshot.jobs)))
        jobs = {one: each for one, each in self.snapshot.jobs.items() if one != job}
        held = {key: holder for key, holder in self.snapshot.held.items() if holder != job}
        self.snapshot = replace(self.snapshot, jobs=jobs, held=held)
        self.decided.pop(job, None)

    @precondition(lambda self: self.snapshot.jobs)
    @rule(data=st.data())
    def fix_size(self, data: st.DataObject) -> None:
        job = self.snapshot.jobs[data.draw(st.sampled_from(sorted(self.snapshot.jobs)))]
        self.put(replace(job, pinned_size=data.draw(st.sampled_from([None, *job.sizes]))))

    @rule()
    def train(self) -> None:
        """Every running job is measured at its size."""
        for job in self.snapshot.jobs.values():
            slots = size(self.snapshot, job)
            if job.state is RUNNING and slots:
                known = [one for one in self.snapshot.measurements.get(job.id, ()) if one.slots != slots]
                speed = 100.0 * slots ** self.exponents[job.id]
                points = (*known, Measurement("cpu", slots, speed, 500, global_batch=64))
                self.snapshot = replace(
                    self.snapshot, measurements={**self.snapshot.measurements, job.id: points}
                )

    @rule(passed_s=st.sampled_from([0.4, 5.0, 29.6, 70.0, 700.0]))
    def decide(self, passed_s: float) -> None:
        self.snapshot = replace(self.snapshot, now=self.snapshot.now + timedelta(seconds=passed_s))
        plan = decide_round(build_round(self.snapshot), Goodput(), solve)
        for one in plan.decisions:
            job = self.snapshot.jobs[one.job_id]
            check_options(self.snapshot, job, one.options)
            if size(self.snapshot, job):
                check_running(self.snapshot, plan, job, one)
            else:
                check_wait(self.snapshot, plan, job, one.message)
        self.settle()
        for one in plan.decisions:
            self.apply(one)
        for job in self.snapshot.jobs.values():
            self.check_views(job)

    def settle(self) -> None:
        """Let jobs that started or stopped do so."""
        for job in list(self.snapshot.jobs.values()):
            if job.state is JobState.STARTING:
                self.put(replace(job, state=RUNNING, live=job.spec.elastic.resize is Resize.LIVE))
            elif job.state is JobState.RESIZING:
                self.put(replace(job, state=PENDING, allocation={}), [])

    def apply(self, one: Decision) -> None:
        """Do what a round decided, as the service does: a job that is stopped holds its slots until the next round."""
        job, now = self.snapshot.jobs[one.job_id], self.snapshot.now
        self.decided[job.id] = one
        keys = keys_of(one.allocation)
        if one.action is Action.START:
            self.put(replace(job, state=JobState.STARTING, state_since=now, allocation=one.allocation), keys)
        elif one.action is Action.CHANGE:
            self.put(replace(job, state_since=now, allocation=one.allocation), keys)
        elif one.action is Action.VACATE:
            progress = with_imposed_change(job.progress, now, 1.0)
            self.put(replace(job, state=JobState.RESIZING, state_since=now, progress=progress))

    def check_views(self, job: Job) -> None:
        """`ps` and `explain` name the size that the job has now."""
        one, held = self.decided.get(job.id), size(self.snapshot, job)
        if one is None:
            return
        last = LastDecision(one.action.value, one.message)
        text = present_reason(
            spec=job.spec, state=job.state, size=held, pinned=job.pinned_size, message="", last=last
        )
        for slots in found(r"^(?:from .* to |fixed at )?(\d+) (?:cpu )?slots?", text):
            assert int(slots) == held, text
        seen = as_of_now(explained(job, one, held))
        assert [each.slots for each in seen.options if each.note == "current"] in ([held] if held else [], [])


def keys_of(allocation: Allocation) -> list[SlotKey]:
    return [SlotKey(node, slot) for node, slots in allocation.items() for slot in slots]


def explained(job: Job, one: Decision, held: int) -> ExplainView:
    return ExplainView(
        job_id=job.id,
        name=job.name,
        state=job.state,
        action=one.action,
        reason=one.reason,
        message=one.message,
        round_id="r",
        decided_at=NOW,
        options=list(one.options),
        size=held,
    )


@pytest.mark.parametrize("resize", ["live", "restart", "never"])
def test_a_job_that_was_not_measured_grows_into_no_slots_of_a_running_job(resize: str) -> None:
    """A second waiting job made the slots of the first one look free: `j0` had `j1` stopped for three more of its own."""
    course = Sentences()
    course.submit((3, 6), 50, "live", 1.0)
    course.submit((2, 2), 30, resize, 1.0)
    course.decide(0.4)
    course.decide(70.0)
    course.submit((2, 2), 30, "live", 1.0)
    for passed_s in (0.4, 70.0, 700.0):
        course.decide(passed_s)
        assert course.decided["j1"].action in {Action.START, Action.KEEP}
        held = [size(course.snapshot, course.snapshot.jobs[name]) for name in ("j0", "j1")]
        assert held in ([3, 2], [4, 2]), "one slot is free"
        assert course.decided["j2"].action is Action.WAIT


TestSentences = pytest.mark.slow(Sentences.TestCase)
TestSentences.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
