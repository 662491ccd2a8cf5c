"""What users do while things go wrong, and their own record of what was acknowledged."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.faulting.evidence import Submission
from benchmarks.faulting.plan import Action, Deed
from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.contract.spec import JobSpec, Resize
from headway.contract.views.jobs import TERMINAL_STATES, JobState, JobView
from headway.errors import HeadwayError

SCRIPTS = Path(__file__).parent / "scripts"
SEEDS = (1, 2)
"""Of the data and the first weights of jobs; each has an undisturbed run."""
_STEP_S = 0.04
_PLAIN_STEPS = 60
_REPEATED = 3
"""Of so many submits one is sent again after it was acknowledged."""
_TRY_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True)
class Form:
    """One shape of job."""

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
    """Everybody who uses the cluster. Each deed is done by a thread, and tried until it is answered.

    Args:
        client: makes a client.
        journals: where ranks write.
        epochs: that counted jobs train.
        note: the record.
    """

    def __init__(
        self, client: Callable[[], Client], journals: Path, epochs: int, note: Callable[..., None]
    ) -> None:
        self._client = client
        self._journals = journals
        self._epochs = epochs
        self._note = note
        self._lock = threading.Lock()
        self._submissions: dict[str, Submission] = {}
        self._threads: list[threading.Thread] = []
        self._giving_up = threading.Event()

    def submissions(self) -> list[Submission]:
        """The record of what was submitted and acknowledged."""
        with self._lock:
            return list(self._submissions.values())

    def do(self, deed: Deed) -> None:
        """Begin a deed."""
        thread = threading.Thread(target=self._do, args=[deed], daemon=True)
        self._threads.append(thread)
        thread.start()

    def finish(self, patience_s: float) -> None:
        """Wait until all deeds are done, or patience is over."""
        give_up_s = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, give_up_s - time.monotonic()))
        self._giving_up.set()
        for thread in self._threads:
            thread.join()

    def _do(self, deed: Deed) -> None:
        with self._client() as client:
            match deed.action:
                case Action.SUBMIT:
                    self._submit(client, deed)
                case Action.DRAIN | Action.CORDON:
                    self._nodes(client, deed)
                case _:
                    self._jobs(client, deed)

    def _submit(self, client: Client, deed: Deed) -> None:
        with self._lock:
            name = f"job-{len(self._submissions) + 1:04}"
            form = FORMS[len(self._submissions) % len(FORMS)]
            submission = Submission(
                name=name,
                script=form.script,
                seed=SEEDS[deed.target % len(SEEDS)],
                job=None,
                may_be_cancelled=False,
            )
            self._submissions[name] = submission
        spec = self.spec(submission, form)
        # The key is the name: a client that knows its job by a key sends the same one however often it must ask.
        view = self._ask(deed, lambda: client.submit(spec, idempotency_key=name), name)
        if not isinstance(view, JobView):
            return
        with self._lock:
            self._submissions[name] = replace(self._submissions[name], job=view.id)
        if deed.amount % _REPEATED == 0:
            again = self._ask(deed, lambda: client.submit(spec, idempotency_key=name), f"{name} again")
            if isinstance(again, JobView) and again.id != view.id:
                self._note("doubled", name=name, first=view.id, second=again.id)

    def spec(self, submission: Submission, form: Form) -> JobSpec:
        """The job of a submission."""
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

    def _jobs(self, client: Client, deed: Deed) -> None:
        with self._lock:
            living = [one for one in self._submissions.values() if one.job is not None]
        if not living:
            return
        recent = living[-6:]  # those before have ended, as a rule
        one = recent[deed.target % len(recent)]
        job = str(one.job)
        if deed.action is Action.RESIZE:
            self._ask(deed, lambda: client.resize(job, 1 + deed.amount % 4), one.name)
        elif deed.action is Action.CANCEL:
            with self._lock:
                self._submissions[one.name] = replace(self._submissions[one.name], may_be_cancelled=True)
            self._ask(deed, lambda: client.cancel(job, force=deed.amount % 2 == 0), one.name)
        else:
            self._ask(deed, lambda: client.pause(job), one.name)
            self._giving_up.wait(deed.lasts_s)
            self._ask(deed, lambda: client.resume(job), f"{one.name} back")

    def _nodes(self, client: Client, deed: Deed) -> None:
        nodes = self._ask(deed, lambda: [node.name for node in client.nodes()], "nodes")
        if not isinstance(nodes, list) or not nodes:
            return
        node = sorted(nodes)[deed.target % len(nodes)]
        act = client.drain if deed.action is Action.DRAIN else client.cordon
        self._ask(deed, lambda: act(node), node)
        self._giving_up.wait(deed.lasts_s)
        self._ask(deed, lambda: client.uncordon(node), f"{node} back")

    def _ask(self, deed: Deed, ask: Callable[[], Any], whom: str) -> Any:
        """Ask until there is an answer; a refusal is one, and None is returned."""
        while not self._giving_up.is_set():
            try:
                answer = ask()
            except HeadwayError as error:
                if _is_refusal(error):
                    self._note("action", action=deed.action, whom=whom, refused=str(error))
                    return None
                self._note("unanswered", action=deed.action, whom=whom, error=str(error))
                self._giving_up.wait(_TRY_AGAIN_S)
            else:
                self._note("action", action=deed.action, whom=whom, answer=_brief(answer))
                return answer
        return None


def set_free(client: Client) -> Sequence[JobView]:
    """Take back what users have left behind: pauses, pinned sizes, nodes that take nothing. The jobs that live."""
    for node in client.nodes():
        if node.state in {NodeState.CORDONED, NodeState.DRAINING, NodeState.DRAINED}:
            client.uncordon(node.name)
    living = [job for job in client.jobs(live=True) if job.state not in TERMINAL_STATES]
    for job in living:
        if job.state is JobState.PAUSED:
            client.resume(job.id)
        if job.pinned_size is not None and job.spec.elastic.resize is not Resize.NEVER:
            client.resize(job.id, None)
    return living


def first_deeds(seed: int, jobs: int) -> list[Deed]:
    """The submits with which a run begins."""
    dice = random.Random(f"first {seed}")
    return [Deed(0.0, Action.SUBMIT, dice.randrange(2**16), 0.0, dice.randrange(2**16)) for _ in range(jobs)]


def _is_refusal(error: HeadwayError) -> bool:
    """Whether the service has said no: anything else may yet come to be."""
    return hasattr(error, "problem")


def _brief(answer: Any) -> str:
    return str(getattr(answer, "state", answer))
