"""The life of jobs over any order of rounds, requests, commands, reports, losses and time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.contract.views.jobs import TERMINAL_STATES, JobState, Reason
from service.domain.jobs.job import size_of
from service.domain.jobs.restorable import Restorable
from service.domain.life import requests
from service.domain.life.changes import READY_WITHIN_S, SWITCHED_WITHIN_S
from service.domain.life.ends import Aftermath
from service.domain.life.targets import finish_at_target
from service.domain.shared.errors import ChangedMeanwhile, IllegalTransition, InvalidField
from tests.unit.service.domain.life.cluster import Cluster, Key
from tests.unit.service.domain.life.scenes import checkpoint_at
from tests.unit.service.domain.life.tables import allocation_of
from tests.unit.service.domain.life.test_targets import at_target

JOBS = ("a", "b")
NODES = ("n0", "n1", "n2")
KINDS = st.sampled_from(["live", "live", "adaptive", "restart"])
KILLED, FAILED, HOPELESS, STOPPED, DONE = (
    {"signal": 9},
    {"exit_code": 1},
    {"exit_code": 78},
    {"exit_code": 143},
    {"exit_code": 0},
)
WAITING = frozenset({JobState.PENDING, JobState.RECOVERING})
HOLDS_NOTHING = TERMINAL_STATES | {JobState.PENDING, JobState.PAUSED}
RESTS = HOLDS_NOTHING | {JobState.RUNNING}
"""States in which a job may stay without anything happening to it."""
CHANGES = frozenset({JobState.RESIZING, JobState.RECOVERING, JobState.CANCELLING})
"""States in which a job may be in the middle of a change in place."""
FAILURES = frozenset({"fail_rank", "lose", "recover", "give_up"})
"""Events that only a job in trouble has."""


class LivesOfJobs(RuleBasedStateMachine):
    """Two jobs on six slots, with a service that decides on what it has stored at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.tables = self.cluster.tables
        self.newest = dict.fromkeys(JOBS, 0)
        self.troubled: set[str] = set()
        """Jobs that something has happened to that may count as a failure."""
        self.at_target: set[str] = set()
        """Jobs that were asked to stop at their target."""
        self.apart = dict.fromkeys(JOBS, 0)
        """Reports of members that could not meet."""

    @initialize(
        data=st.data(),
        kinds=st.tuples(KINDS, KINDS),
        retries=st.integers(0, 3),
        sizes=st.tuples(st.integers(1, 4), st.integers(0, 2)),
        begins=st.sampled_from(["change", "end", "nothing"]),
    )
    def submit_two(
        self,
        data: st.DataObject,
        kinds: tuple[str, str],
        retries: int,
        sizes: tuple[int, int],
        begins: str,
    ) -> None:
        """Submit two jobs, of which the first trains already, and may have begun to change or to end."""
        for name, kind, size in zip(JOBS, kinds, sizes, strict=True):
            self._submit(name, kind, retries)
            if size:
                free = data.draw(st.permutations(self.tables.free_slots()))
                self.cluster.start(name, allocation_of(free[:size]))
        self.cluster.settle()
        for name in JOBS:
            self.cluster.take_first_step(name)
        self.cluster.settle()
        match begins:
            case "change":
                self._move(data, JOBS[0])
            case "end":
                self._finish(JOBS[0], data.draw(st.integers(1, 3)))

    def _submit(self, name: str, kind: str, retries: int) -> None:
        elastic = {"min": 1, "max": 4, "resize": "restart" if kind == "restart" else "live"}
        batch = (
            {"global": 32, "policy": "adaptive", "max_global": 64} if kind == "adaptive" else {"global": 32}
        )
        retry = {"infrastructure": retries, "user_errors": retries}
        self.tables.submit(name, elastic=elastic, retry=retry, batch=batch)

    @rule(
        data=st.data(), verb=st.sampled_from(["pause", "resume", "resume", "resize", "prioritize", "cancel"])
    )
    def a_user_asks(self, data: st.DataObject, verb: str) -> None:
        life = self.tables.life(data.draw(st.sampled_from(JOBS)))
        asked = {"reason": Reason.USER_REQUEST}
        try:
            match verb:
                case "pause":
                    life = requests.pause(life, **asked, why="its user paused it")
                case "resume":
                    found = data.draw(
                        st.sampled_from([None, Restorable(None), Restorable(checkpoint_at(100))])
                    )
                    life = requests.resume(life, by="alice", restorable=found)
                case "resize":
                    life = requests.resize(life, data.draw(st.sampled_from([None, 1, 2, 4, 9])))
                case "prioritize":
                    life = requests.prioritize(life, data.draw(st.integers(0, 9)))
                case _ if data.draw(st.integers(0, 4)) == 0:
                    life = requests.cancel(life, Aftermath(), force=False, **asked, message="cancelled")
        except (ChangedMeanwhile, IllegalTransition, InvalidField):
            return
        self.cluster.store(life)

    @precondition(lambda self: self._choices())
    @rule(data=st.data())
    def a_round_decides(self, data: st.DataObject) -> None:
        name, does = data.draw(st.sampled_from(self._choices()))
        match does:
            case "vacate":
                self.cluster.vacate(name)
            case "batch":
                self.cluster.adapt(name, 64)
            case _:
                self._move(data, name)

    def _choices(self) -> list[tuple[str, str]]:
        """Return the possible decisions of a round with their jobs; frequent ones are repeated."""
        choices = {
            JobState.STARTING: ["vacate"],
            JobState.RUNNING: ["move", "move", "move", "batch", "vacate"],
            JobState.PENDING: ["move", "move"],
            JobState.RECOVERING: ["move", "move"],
        }
        return [
            (name, does)
            for name, job in self.tables.jobs.items()
            if not job.pause_requested and not (job.state in WAITING and self.tables.held(name))
            for does in choices.get(job.state, [])
        ]

    def _move(self, data: st.DataObject, name: str) -> None:
        """Start a waiting job on any slots, or change a running one to any."""
        job = self.tables.jobs[name]
        lost = {host.id for host in self.tables.hosts.values() if host.lost}
        mine = [(node, slot) for node, slots in job.allocation.items() for slot in slots]
        usable = [one for one in (*mine, *self.tables.free_slots()) if one[0] not in lost]
        if usable:
            size = data.draw(st.integers(1, min(4, len(usable))))
            slots = allocation_of(data.draw(st.permutations(usable))[:size])
            (self.cluster.start if job.state in WAITING else self.cluster.change)(name, slots)

    def _waiting(self) -> list[tuple[str, bool]]:
        """The nodes with commands (True) or reports that have not arrived."""
        agents = self.cluster.agents.items()
        return [(node, True) for node, one in agents if one.inbox] + [
            (node, False) for node, one in agents if one.outbox
        ]

    @precondition(lambda self: self._waiting())
    @rule(data=st.data(), times=st.sampled_from([1, 1, 2]), count=st.integers(1, 4))
    def some_messages_arrive(self, data: st.DataObject, times: int, count: int) -> None:
        """Let a few commands and reports arrive, some of them twice."""
        for _ in range(count):
            waiting = self._waiting()
            if not waiting:
                return
            node, is_command = data.draw(st.sampled_from(waiting))
            if is_command:
                self.cluster.take_command(node, again=times > 1)
            else:
                self.cluster.take_report(node, times=times)

    @precondition(lambda self: self._waiting())
    @rule()
    def all_messages_arrive(self) -> None:
        self.cluster.settle()

    @precondition(lambda self: self.cluster.processes)
    @rule(
        name=st.sampled_from(JOBS),
        does=st.sampled_from(["step", "switch", "switch", "fail to meet", "complete"]),
        leaving=st.sampled_from([DONE, STOPPED, KILLED]),
        reports=st.integers(0, 3),
    )
    def a_job_trains(self, name: str, does: str, leaving: dict[str, int], reports: int) -> None:
        """Let a job take a step, switch or finish; the end of some ranks is reported before that of others."""
        match does:
            case "step":
                self.cluster.take_first_step(name)
            case "switch":
                self.cluster.switch(name, **leaving)
            case "fail to meet":
                self.apart[name] += self.cluster.fail_to_meet(name)
            case _:
                self._finish(name, reports)

    @precondition(lambda self: self.cluster.processes)
    @rule(name=st.sampled_from(JOBS), chance=st.integers(0, 2))
    def a_job_reaches_its_target(self, name: str, chance: int) -> None:
        life = self.tables.life(name)
        after = finish_at_target(life.with_job(at_target(life.job))) if chance == 0 else life
        if after.job.reason is Reason.TARGET_REACHED and after is not life:
            self.at_target.add(name)
            self.cluster.store(after)

    @invariant()
    def a_job_at_its_target_succeeds(self) -> None:
        for name in self.at_target:
            job = self.tables.jobs[name]
            assert job.state in {JobState.CANCELLING, JobState.SUCCEEDED}
            assert job.reason is Reason.TARGET_REACHED

    def _finish(self, name: str, reports: int) -> None:
        """Let all ranks of a job finish, and the first reports about it arrive."""
        self.cluster.complete(name)
        outboxes = [node for node in NODES for _ in self.cluster.agents[node].outbox]
        for node in outboxes[:reports]:
            self.cluster.take_report(node)

    @precondition(lambda self: self.cluster.processes)
    @rule(data=st.data(), end=st.sampled_from([KILLED, KILLED, FAILED, HOPELESS, STOPPED, None]))
    def a_rank_ends_or_hangs(self, data: st.DataObject, end: dict[str, int] | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.cluster.processes)))
        self.troubled.add(key[0])
        if end is None:
            self.cluster.hang(key)
        else:
            self.cluster.end(key, **end)

    @precondition(lambda self: self._loading())
    @rule(data=st.data())
    def a_newcomer_gets_ready(self, data: st.DataObject) -> None:
        self.cluster.get_ready(data.draw(st.sampled_from(self._loading())))

    def _loading(self) -> list[Key]:
        processes = self.cluster.processes.items()
        return sorted(key for key, one in processes if one.role is None and not one.ready)

    @rule(
        happens=st.sampled_from(["node", "time", "time"]),
        node=st.sampled_from(NODES),
        seconds=st.sampled_from([1.0, READY_WITHIN_S, SWITCHED_WITHIN_S]),
    )
    def the_world_goes_on(self, happens: str, node: str, seconds: float) -> None:
        """Let time pass, or lose a node, or take it back."""
        if happens == "time":
            if seconds >= SWITCHED_WITHIN_S:
                self.troubled.update(name for name in JOBS if self.tables.jobs[name].switch is not None)
            self.tables.pass_time(seconds)
            self.cluster.overdue()
        elif self.tables.hosts[node].lost:
            self.cluster.take_back(node)
        else:
            self.troubled.update(holder for (at, _), (holder, _) in self.tables.grants.items() if at == node)
            self.cluster.lose(node)

    # Promises

    @invariant()
    def a_job_without_processes_to_come_holds_nothing(self) -> None:
        for name, job in self.tables.jobs.items():
            held = self.tables.held(name)
            if job.state in HOLDS_NOTHING:
                assert not held, f"{job.state} with slots"
            coming = [number for number in held if number > job.newest_generation]
            assert held.keys() != set(coming) or not held, (
                f"{job.state} with slots of a start that never comes"
            )

    @invariant()
    def generations_only_grow(self) -> None:
        for name, job in self.tables.jobs.items():
            assert self.newest[name] <= job.newest_generation
            assert job.generation <= job.newest_generation
            self.newest[name] = job.newest_generation

    @invariant()
    def only_what_runs_or_comes_has_not_ended(self) -> None:
        for name, job in self.tables.jobs.items():
            switch = job.switch.generation if job.switch is not None else job.generation
            alive = {job.generation, switch} if self.tables.held(name) else set()
            assert self.tables.unended(name) <= alive, f"{job.state} with abandoned generations"

    @invariant()
    def every_state_fits_what_the_job_does(self) -> None:
        for job in self.tables.jobs.values():
            assert job.message, f"{job.state} without a word"
            assert job.switch is None or job.state in CHANGES
            assert job.target is None or job.state is JobState.RESIZING
            assert job.state is not JobState.RUNNING or size_of(job.allocation) > 0

    @invariant()
    def failures_have_causes(self) -> None:
        """Orders, stops, late reports and repeated ones are no failures, and each loss counts once."""
        for name in JOBS:
            kinds = [event.kind for event in self.tables.events.get(name, ())]
            assert name in self.troubled or FAILURES.isdisjoint(kinds), f"{name} failed untroubled"
            exits = [exit_ for exit_ in self.tables.exits.get(name, {}).values() if not exit_.completed]
            assert kinds.count("lose") <= len(exits) + self.apart[name], f"{name} lost a process twice"

    def teardown(self) -> None:
        """Whatever has happened, every job gets to rest: it trains, waits for slots, or has ended."""
        self.cluster.settle()
        self.failures_have_causes()
        for _ in range(3):
            self.tables.pass_time(2 * SWITCHED_WITHIN_S)
            self.cluster.overdue()
            self.cluster.settle()
        for name, job in self.tables.jobs.items():
            retries = job.state is JobState.RECOVERING and not self.tables.held(name)
            assert job.state in RESTS or retries, f"{name} stays {job.state}: {job.message}"
            slots = {(node, slot) for node, slots in job.allocation.items() for slot in slots}
            held = {key for key, (holder, _) in self.tables.grants.items() if holder == name}
            here = {(one.node, one.slot) for key, one in self.cluster.processes.items() if key[0] == name}
            assert slots == held, f"{name} holds other slots than it trains on"
            assert slots == here, f"{name} has other ranks than its slots"


LivesOfJobs.TestCase.settings = settings(max_examples=180, stateful_step_count=40, deadline=None)
TestLivesOfJobs = LivesOfJobs.TestCase
