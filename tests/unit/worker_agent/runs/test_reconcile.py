"""The rules of the agent over any order of commands, processes and time."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from worker_agent.runs import reconcile as rules
from worker_agent.runs.reconcile import Action, ActionKind, Fence, Phase, RunState

JOBS = st.sampled_from(["a", "b"])
GENERATIONS = st.integers(1, 4)
SLOTS = st.sets(st.integers(0, 2), min_size=1)


def _run(**fields: object) -> RunState:
    defaults = {"job_id": "a", "generation": 1, "slots": frozenset({0}), "phase": Phase.LIVE}
    return RunState(**{**defaults, **fields})  # type: ignore[arg-type]


class World(RuleBasedStateMachine):
    """An agent with two jobs on three slots; processes obey SIGKILL, and SIGTERM if they like."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.runs: dict[tuple[str, int], RunState] = {}
        self.fences = {"a": Fence(), "b": Fence()}
        self.processes: set[tuple[str, int]] = set()
        self.superseded: set[tuple[str, int]] = set()
        self.ever_started: set[tuple[str, int]] = set()
        self.wanted_gone: set[tuple[str, int]] = set()
        self.failed: set[tuple[str, int]] = set()

    @rule(job=JOBS, generation=GENERATIONS, slots=SLOTS, live=st.booleans(), joins=st.booleans())
    def run_arrives(self, job: str, generation: int, slots: set[int], live: bool, joins: bool) -> None:
        if rules.refusal(self.fences[job], generation):
            return
        self.fences[job] = replace(self.fences[job], run=generation)
        if not joins:
            self.superseded.update(key for key in self.runs if key[0] == job)
        self.runs[job, generation] = RunState(
            job_id=job,
            generation=generation,
            slots=frozenset(slots),
            live=live or joins,
            joins=joins,
            phase=Phase.PREPARING,
        )

    @rule(job=JOBS, generation=GENERATIONS, oldest=GENERATIONS, kill=st.booleans(), grace_s=st.floats(0, 5))
    def stop_arrives(self, job: str, generation: int, oldest: int, kill: bool, grace_s: float) -> None:
        fence = self.fences[job]
        self.fences[job] = replace(fence, stop=max(fence.stop, generation))
        for key, run in self.runs.items():
            if key[0] == job and oldest <= key[1] <= generation:
                self.wanted_gone.add(key)
                self.runs[key] = rules.stopped(run, kill=kill, grace_s=grace_s, now_s=self.now_s)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def files_are_ready(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.runs)))
        if self.runs[key].phase is Phase.PREPARING:
            self.runs[key] = replace(self.runs[key], phase=Phase.READY)

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), fails=st.booleans())
    def processes_end(self, data: st.DataObject, fails: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.processes)))
        if fails:
            run = self.runs[key]
            self.runs[key] = rules.after_failure(run, self.now_s)
            if not run.live or run.ending:
                self.failed.add(key)
        else:
            self.processes.discard(key)
            self.runs[key] = replace(self.runs[key], phase=Phase.GONE)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def a_rank_of_a_live_run_is_gone(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.processes)))
        run = self.runs[key]
        if run.live and run.slots:
            slot = data.draw(st.sampled_from(sorted(run.slots)))
            self.runs[key] = replace(run, slots=run.slots - {slot})

    @rule(seconds=st.floats(0, 3))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def agent_acts(self) -> None:
        for action in rules.reconcile(self.runs.values(), self.now_s):
            key = (action.run.job_id, action.run.generation)
            match action:
                case Action(ActionKind.START):
                    assert key not in self.ever_started, "a generation starts once"
                    assert key not in self.wanted_gone, "never after its stop"
                    assert action.run.joins or not any(job == key[0] for job, _ in self.processes)
                    self.ever_started.add(key)
                    self.processes.add(key)
                    self.runs[key] = replace(self.runs[key], phase=Phase.LIVE)
                case Action(ActionKind.TERMINATE):
                    assert key in self.wanted_gone
                    self.runs[key] = replace(self.runs[key], terminated=True)
                case Action(ActionKind.KILL):
                    assert key in self.wanted_gone | self.superseded | self.failed, "somebody has to want it"
                    self.runs[key] = replace(self.runs[key], killed=True, phase=Phase.GONE)
                    self.processes.discard(key)
                case Action(ActionKind.RELEASE):
                    assert key not in self.processes, "released while a process was alive"
                    del self.runs[key]

    @invariant()
    def one_run_of_a_slot(self) -> None:
        slots = [slot for key in self.processes for slot in self.runs[key].slots]
        assert len(slots) == len(set(slots))

    def teardown(self) -> None:
        """Whatever was stopped goes away with time alone."""
        self.now_s += 10.0
        for _ in range(3):
            self.agent_acts()
        assert not self.wanted_gone & set(self.runs)


World.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestWorld = World.TestCase


def test_a_stop_asks_first_and_kills_when_the_grace_is_over() -> None:
    run = rules.stopped(_run(), kill=False, grace_s=5.0, now_s=100.0)
    assert rules.reconcile([run], 100.0) == [Action(ActionKind.TERMINATE, run)]
    asked = replace(run, terminated=True)
    assert rules.reconcile([asked], 104.9) == []
    assert rules.reconcile([asked], 105.0) == [Action(ActionKind.KILL, asked)]
    assert rules.reconcile([replace(asked, killed=True)], 200.0) == []


def test_of_several_stops_the_earliest_kill_counts() -> None:
    run = rules.stopped(_run(), kill=False, grace_s=60.0, now_s=100.0)
    assert rules.stopped(run, kill=True, grace_s=60.0, now_s=101.0).kill_at_s == 101.0
    assert rules.stopped(run, kill=False, grace_s=600.0, now_s=101.0).kill_at_s == 160.0


def test_a_gang_is_given_a_moment_to_fail_by_itself() -> None:
    run = rules.after_failure(_run(), 100.0)
    assert rules.reconcile([run], 100.0) == []
    assert rules.reconcile([run], 100.0 + rules.GANG_GRACE_S) == [Action(ActionKind.KILL, run)]
    stopping = rules.stopped(_run(terminated=True), kill=False, grace_s=60.0, now_s=100.0)
    assert rules.after_failure(stopping, 110.0).kill_at_s == 110.0 + rules.GANG_GRACE_S


def test_a_run_that_is_stopped_before_its_start_never_starts() -> None:
    for phase in (Phase.PREPARING, Phase.READY):
        run = rules.stopped(_run(phase=phase), kill=False, grace_s=60.0, now_s=0.0)
        assert rules.reconcile([run], 0.0) == [Action(ActionKind.RELEASE, run)]


def test_a_newer_generation_ends_the_older_and_waits_for_it() -> None:
    old, new = _run(generation=1), _run(generation=2, phase=Phase.READY)
    assert rules.reconcile([new, old], 0.0) == [Action(ActionKind.KILL, old)]
    gone = replace(old, phase=Phase.GONE)
    assert rules.reconcile([new, gone], 0.0) == [
        Action(ActionKind.RELEASE, gone),
        Action(ActionKind.START, new),
    ]


def test_a_joining_run_starts_beside_the_older_ones_on_free_slots() -> None:
    old = _run(slots=frozenset({0, 1}), live=True)
    new = _run(generation=3, slots=frozenset({1}), live=True, joins=True, phase=Phase.READY)
    assert rules.reconcile([old, new], 0.0) == []
    assert rules.reconcile([replace(old, slots=frozenset({0})), new], 0.0) == [Action(ActionKind.START, new)]
    anew = _run(generation=4, live=True, phase=Phase.READY)
    joined = replace(new, phase=Phase.LIVE)
    assert rules.reconcile([old, joined, anew], 0.0) == [
        Action(ActionKind.KILL, old),
        Action(ActionKind.KILL, joined),
    ]


def test_a_rank_that_fails_leaves_a_live_run_to_the_service_until_it_is_stopped() -> None:
    run = _run(live=True)
    assert rules.after_failure(run, 100.0) == run
    stopping = rules.stopped(run, kill=False, grace_s=60.0, now_s=100.0)
    assert rules.after_failure(stopping, 110.0).kill_at_s == 110.0 + rules.GANG_GRACE_S


def test_a_busy_slot_is_waited_for() -> None:
    first, second = _run(slots=frozenset({0, 1})), _run(job_id="b", slots=frozenset({1}), phase=Phase.READY)
    assert rules.reconcile([first, second], 0.0) == []
    assert rules.reconcile([second], 0.0) == [Action(ActionKind.START, second)]


def test_what_a_fence_refuses() -> None:
    fence = Fence(run=3, stop=5)
    assert "3" in rules.refusal(fence, 3)
    assert "5" in rules.refusal(fence, 4)
    assert rules.refusal(fence, 6) == ""


def test_which_ends_break_a_gang() -> None:
    def breaks(code: int | None, **facts: bool) -> bool:
        return rules.breaks_gang(code, **{"completed": False, "signalled": False, "library": False, **facts})

    assert [breaks(code) for code in (0, 143, 1, 75, None)] == [False, False, True, True, True]
    assert not breaks(134, completed=True), "the library's word counts more than the exit code"
    assert not breaks(None, signalled=True), "a plain script may leave the checkpoint to one rank"
    assert breaks(None, signalled=True, library=True)
