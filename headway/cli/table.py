"""Table of the verbs of `headway`, from which the help is printed without importing any verb."""

from __future__ import annotations

from typing import Any, NamedTuple


class Verb(NamedTuple):
    """A verb, or a group of verbs.

    `place` is `module:attribute` in `headway.cli.verbs`. `summary` is the first line of the verb's docstring.
    """

    place: str
    summary: str


PANELS: dict[str, dict[str, Verb]] = {
    "This machine": {
        "up": Verb(
            "cluster.local:up",
            "Run all of Headway on this machine: stores, API, scheduler and agents, until Ctrl-C.",
        ),
        "down": Verb(
            "cluster.local:down",
            "Stop the programs of `headway up`; unfinished jobs continue at the next `headway up`.",
        ),
        "doctor": Verb(
            "cluster.doctor:doctor",
            "Check this machine, the service and its agents; exit with 1 if a check fails.",
        ),
        "agent": Verb(
            "cluster.agent:agent", "Run an agent, which trains the jobs of a service on this machine's slots."
        ),
        "version": Verb("cluster.version:version", "Show the versions of this program and of the service."),
    },
    "Jobs": {
        "submit": Verb("jobs.submit:submit", "Submit the job of a job file."),
        "ps": Verb("jobs.jobs:ps", "List jobs and their progress."),
        "describe": Verb("jobs.jobs:describe", "Show all details of a job."),
        "logs": Verb("jobs.follow:logs", "Show the output of a job's ranks, in the order of its arrival."),
        "events": Verb("jobs.follow:events", "Show the events of a job."),
        "checkpoints": Verb(
            "jobs.checkpoints:checkpoints",
            "List a job's checkpoints in storage, and mark the one that it would restore.",
        ),
        "output": Verb(
            "jobs.outputs:output",
            "List the files of a job's output folder in storage, or download them.",
        ),
    },
    "Decisions": {
        "plan": Verb(
            "jobs.decisions:plan",
            "Forecast the time and cost of a job file at every size. Nothing is submitted.",
        ),
        "forecast": Verb(
            "jobs.decisions:forecast",
            "Forecast when a job will end and what it will cost, at every size it could have.",
        ),
        "explain": Verb(
            "jobs.decisions:explain",
            "Explain why a job has its size, or why it waits, and what another slot would be worth to it.",
        ),
        "rounds": Verb(
            "jobs.decisions:rounds",
            "List scheduling rounds, or show one: policy, bound, prices and every change with its reason.",
        ),
        "policy": Verb(
            "jobs.decisions:policy",
            "Show the scheduling policy and its parameters, or change them from the next round on.",
        ),
        "whatif": Verb(
            "jobs.whatif:whatif",
            "Simulate the cluster with more or fewer nodes, another budget or policy, or other jobs.",
        ),
        "simulate": Verb(
            "jobs.simulate:simulate",
            "Compare policies on a list of jobs in virtual time, by completion times and cost. Nothing runs.",
        ),
    },
    "Money": {
        "recommend": Verb(
            "jobs.recommend:recommend",
            "Recommend machines to rent for a job, with time and cost to completion. Nothing is rented.",
        ),
        "offers": Verb(
            "jobs.recommend:offers",
            "List the machines that can be rented, with their prices, or with their cost for one job.",
        ),
        "usage": Verb(
            "cluster.budget:usage",
            "Show spending, split into useful work, resizes, lost work and idle time.",
        ),
        "budget": Verb("cluster.budget:budget", "Show budgets and their spending; set or remove a budget."),
    },
    "Steering jobs": {
        "priority": Verb("jobs.jobs:priority", "Change a job's priority from the next round on."),
        "resize": Verb("jobs.jobs:resize", "Fix the size of a job, or let the scheduler choose it again."),
        "pause": Verb(
            "jobs.jobs:pause",
            "Stop a job, which may save a checkpoint, and take its slots until `headway resume`.",
        ),
        "resume": Verb("jobs.jobs:resume", "Continue a paused job, from its checkpoint if it has one."),
        "cancel": Verb("jobs.jobs:cancel", "Cancel a job; it cannot be resumed."),
    },
    "Nodes": {
        "nodes": Verb("cluster.nodes:nodes", "List nodes, and the jobs that hold their slots."),
        "machines": Verb(
            "cluster.machines:machines",
            "List rented machines, why they were rented and what they have cost.",
        ),
        "drain": Verb(
            "cluster.nodes:drain",
            "Move a node's jobs away after a checkpoint, and schedule no new jobs on it.",
        ),
        "cordon": Verb("cluster.nodes:cordon", "Schedule no new jobs on a node; its present jobs stay."),
        "uncordon": Verb("cluster.nodes:uncordon", "Schedule jobs on a cordoned or drained node again."),
        "quarantine": Verb(
            "cluster.nodes:quarantine",
            "Schedule no jobs on a slot until it is released; a job that holds it moves away.",
        ),
        "release": Verb(
            "cluster.nodes:release", "Schedule jobs on a slot again, whatever the reason for its quarantine."
        ),
        "join-token": Verb(
            "identity.join_token:join_token", "Create, list and revoke the tokens that agents join with."
        ),
    },
    "Access": {
        "login": Verb(
            "identity.login:login",
            "Sign in to a service, through its identity provider or with a token, for later commands.",
        ),
        "whoami": Verb(
            "identity.login:whoami", "Show the user of the present token, its roles and its expiry."
        ),
        "audit": Verb(
            "identity.audit:audit",
            "Show the audit log of changes and refused requests, newest first (admins).",
        ),
        "token": Verb("identity.token:token", "Create, list and revoke tokens."),
        "project": Verb(
            "identity.project:project", "Create and change projects, their members and their quotas."
        ),
        "user": Verb("identity.user:user", "Add, disable and remove users (admins)."),
        "secret": Verb("identity.secret:secret", "Store credentials that jobs name under `secrets:`."),
    },
}
"""Verbs by the help panel that lists them, in the order of the help."""

ALIASES = {"ls": "ps", "status": "describe", "stop": "cancel", "rm": "cancel"}
"""Words that other tools use for a verb. One line of the help lists them."""
BARE_ALIASES = {"status": "ps"}
"""The verbs that aliases mean when the command line names no job."""
NEAREST = {
    "delete": "cancel",
    "kill": "cancel",
    "remove": "cancel",
    "list": "ps",
    "jobs": "ps",
    "show": "describe",
    "get": "describe",
    "run": "submit",
    "create": "submit",
    "start": "submit",
    "scale": "resize",
    "continue": "resume",
    "why": "explain",
    "tail": "logs",
    "signin": "login",
}
"""Suggested verbs for unknown words, where the nearest spelling would suggest the wrong verb."""
AGENT_SETTINGS: dict[str, Any] = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
}
"""Click settings of `headway agent`. The agent's own parser defines all of its flags, `--help` among them."""
