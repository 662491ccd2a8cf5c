"""Simulated users during the faults, with their own record of acknowledged submits."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.faulting.evidence import Submission
from benchmarks.faulting.histories import Call, History, is_refusal
from benchmarks.faulting.plan import Action, UserAction
from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec, Resize
from headway.contract.views.jobs import TERMINAL_STATES, JobState, JobView
from headway.errors import HeadwayError

SCRIPTS = Path(__file__).parent / "scripts"
SEEDS = (1, 2)
"""Seeds of the data and initial weights of jobs; each seed has an undisturbed run."""
_STEP_S = 0.04
_PLAIN_STEPS = 60
_REPEATED = 3
"""One in so many submits is repeated after its acknowledgement."""
_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class Form:
    """Form of a job: its script, sizes, kind of resize, and checkpoint interval."""

    script: str
    smallest: int
    largest: int
    resize: str
    every: str


FORMS = (
    Form("counted", 1, 4, "live", "2s"),
    Form("counted", 2, 4, "live", "1s"),
    Form("counted", 1, 3, "restart", "2s"),
    Form("plain", 1, 1, "never", "auto"),
    Form("counted", 1, 2, "live", "5s"),
)


class Users:
    """Users of the cluster. A thread executes each action, and retries it until the service answers.

    Args:
        client: creates a client.
        journals: folder of the ranks' journals.
        epochs: number of epochs of counted jobs.
        note: appends an event to the record.
        history: records the operations on jobs.
    """

    def __init__(
        self,
        client: Callable[[], Client],
        journals: Path,
        epochs: int,
        note: Callable[..., None],
        history: History,
    ) -> None:
        self._history = history
        self._client = client
        self._journals = journals
        self._epochs = epochs
        self._note = note
        self._lock = threading.Lock()
        self._submissions: dict[str, Submission] = {}
        self._threads: list[threading.Thread] = []
        self._giving_up = threading.Event()

    def submissions(self) -> list[Submission]:
        """Return all submits, with the ids of acknowledged ones."""
        with self._lock:
            return list(self._submissions.values())

    def do(self, action: UserAction) -> None:
        """Start an action in a thread."""
        thread = threading.Thread(target=self._do, args=[action], daemon=True)
        self._threads.append(thread)
        thread.start()

    def finish(self, patience_s: float) -> None:
        """Wait until all actions are done, or abandon them after `patience_s`."""
        give_up_s = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, give_up_s - time.monotonic()))
        self._giving_up.set()
        for thread in self._threads:
            thread.join()

    def _do(self, action: UserAction) -> None:
        with self._client() as client:
            match action.kind:
                case Action.SUBMIT:
                    self._submit(client, action)
                case Action.DRAIN | Action.CORDON:
                    self._nodes(client, action)
                case _:
                    self._jobs(client, action)

    def _submit(self, client: Client, action: UserAction) -> None:
        with self._lock:
            name = f"job-{len(self._submissions) + 1:04}"
            form = FORMS[len(self._submissions) % len(FORMS)]
            submission = Submission(
                name=name,
                script=form.script,
                seed=SEEDS[action.target % len(SEEDS)],
                job=None,
                may_be_cancelled=False,
            )
            self._submissions[name] = submission
        spec = self.spec(submission, form)

        # The idempotency key is the name, so that every retry sends the same key.
        def submit() -> JobView:
            return self._history.asked(name, Call.SUBMIT, lambda: client.submit(spec, idempotency_key=name))

        view = self._ask(action, submit, name)
        if not isinstance(view, JobView):
            return
        with self._lock:
            self._submissions[name] = replace(self._submissions[name], job=view.id)
        if action.amount % _REPEATED == 0:
            again = self._ask(action, submit, f"{name} again")
            if isinstance(again, JobView) and again.id != view.id:
                self._note("doubled", name=name, first=view.id, second=again.id)

    def spec(self, submission: Submission, form: Form) -> JobSpec:
        """Return the job file of a submission."""
        run = f"python counted.py {self._epochs} {submission.seed} {_STEP_S}"
        if form.script == "plain":
            run = f"python plain.py {_PLAIN_STEPS} {_STEP_S}"
        return JobSpec.model_validate(
            {
                "name": submission.name,
                "workdir": str(SCRIPTS),
                "run": run,
                "env": {"JOURNAL": str(self._journals)},
                "elastic": {"min": form.smallest, "max": form.largest, "resize": form.resize},
                "checkpoint": {"every": form.every, "grace_s": 20},
                "retry": {"infrastructure": 1000},
            }
        )

    def _jobs(self, client: Client, action: UserAction) -> None:
        with self._lock:
            living = [one for one in self._submissions.values() if one.job is not None]
        if not living:
            return
        recent = living[-6:]  # earlier jobs have usually ended
        one = recent[action.target % len(recent)]
        job = str(one.job)
        if action.kind is Action.RESIZE:
            size = 1 + action.amount % 4
            self._ask(action, lambda: resize(client, self._history, one.name, job, size), one.name)
        elif action.kind is Action.CANCEL:
            with self._lock:
                self._submissions[one.name] = replace(self._submissions[one.name], may_be_cancelled=True)
            force = action.amount % 2 == 0

            def cancel() -> JobView:
                return self._history.asked(one.name, Call.CANCEL, lambda: client.cancel(job, force=force))

            self._ask(action, cancel, one.name)
        else:
            self._ask(action, lambda: client.pause(job), one.name)
            self._giving_up.wait(action.lasts_s)
            self._ask(action, lambda: client.resume(job), f"{one.name} back")

    def _nodes(self, client: Client, action: UserAction) -> None:
        nodes = self._ask(action, lambda: [node.name for node in client.nodes()], "nodes")
        if not isinstance(nodes, list) or not nodes:
            return
        node = sorted(nodes)[action.target % len(nodes)]
        act = client.drain if action.kind is Action.DRAIN else client.cordon
        self._ask(action, lambda: act(node), node)
        self._giving_up.wait(action.lasts_s)
        self._ask(action, lambda: client.uncordon(node), f"{node} back")

    def _ask(self, action: UserAction, ask: Callable[[], Any], whom: str) -> Any:
        """Send a request until it is answered, and return the answer, or None after a refusal."""
        while not self._giving_up.is_set():
            try:
                answer = ask()
            except HeadwayError as error:
                if is_refusal(error):
                    self._note("action", action=action.kind, whom=whom, refused=str(error))
                    return None
                self._note("unanswered", action=action.kind, whom=whom, error=str(error))
                self._giving_up.wait(_RETRY_S)
            else:
                self._note("action", action=action.kind, whom=whom, answer=_brief(answer))
                return answer
        return None


def resize(client: Client, history: History, name: str, job: str, size: int | None) -> JobView:
    """Resize a job, and record the operation. Raises HeadwayError as the client does."""
    return history.asked(name, Call.RESIZE, lambda: client.resize(job, size), size)


def set_free(client: Client, history: History) -> Sequence[JobView]:
    """Revert pauses, pinned sizes and unavailable nodes, and return the live jobs."""
    for node in client.nodes():
        if node.state in {NodeState.CORDONED, NodeState.DRAINING, NodeState.DRAINED}:
            client.uncordon(node.name)
    living = [job for job in client.jobs(live=True) if job.state not in TERMINAL_STATES]
    for job in living:
        if job.state is JobState.PAUSED:
            client.resume(job.id)
        if job.pinned_size is not None and job.spec.elastic.resize is not Resize.NEVER:
            resize(client, history, job.name, job.id, None)
    return living


def first_actions(seed: int, jobs: int) -> list[UserAction]:
    """Return the submits at the begin of a run."""
    dice = random.Random(f"first {seed}")
    return [
        UserAction(0.0, Action.SUBMIT, dice.randrange(2**16), 0.0, dice.randrange(2**16)) for _ in range(jobs)
    ]


def _brief(answer: Any) -> str:
    return str(getattr(answer, "state", answer))
