"""Table of the verbs of `headway`, from which the help is printed without importing any verb."""

from __future__ import annotations

from typing import Any, NamedTuple


class Verb(NamedTuple):
    """A verb, or a group of verbs.

    `module` is the module in `headway.cli.verbs` that defines it, under the verb's name with `_` for `-`.
    `summary` is the first line of the verb's docstring.
    """

    module: str
    summary: str


PANELS: dict[str, dict[str, Verb]] = {
    "This machine": {
        "up": Verb(
            "cluster.local",
            "Run all of Headway on this machine: stores, API, scheduler and agents, until Ctrl-C.",
        ),
        "down": Verb(
            "cluster.local",
            "Stop the programs of `headway up`, and give rented nodes back; unfinished jobs continue at the next `headway up`.",
        ),
        "doctor": Verb(
            "cluster.doctor", "Check this machine, the service and its agents; exit with 1 if a check fails."
        ),
        "agent": Verb(
            "cluster.agent", "Run an agent, which trains the jobs of a service on this machine's slots."
        ),
        "version": Verb("cluster.version", "Show the versions of this program and of the service."),
    },
    "Jobs": {
        "submit": Verb("jobs.submit", "Submit the job of a job file, or its sweep."),
        "ps": Verb("jobs.jobs", "List jobs and their progress."),
        "describe": Verb("jobs.jobs", "Show all details of a job."),
        "ranks": Verb("jobs.ranks", "List a job's processes: rank, node, slot and process id."),
        "graph": Verb("jobs.graph", "Show which jobs start after which, as a tree."),
        "sweep": Verb(
            "jobs.sweeps", "Show sweeps and their trials; cancel, pause or resume all trials at once."
        ),
        "logs": Verb("jobs.follow", "Show the output of a job's ranks, in the order of its arrival."),
        "events": Verb("jobs.follow", "Show the events of a job."),
        "exec": Verb(
            "jobs.execution", "Run a command beside a rank of a running job, and exit with its code."
        ),
        "shell": Verb(
            "jobs.execution",
            "Open a shell beside a rank of a running job, in this terminal, and exit with its code.",
        ),
        "checkpoints": Verb(
            "jobs.checkpoints", "List a job's checkpoints in storage, and mark the one that it would restore."
        ),
        "output": Verb(
            "jobs.outputs", "List the files of a job's output folder in storage, or download them."
        ),
    },
    "Decisions": {
        "plan": Verb(
            "jobs.decisions", "Forecast the time and cost of a job file at every size. Nothing is submitted."
        ),
        "forecast": Verb(
            "jobs.decisions",
            "Forecast when a job will end and what it will cost, at every size it could have.",
        ),
        "explain": Verb(
            "jobs.decisions",
            "Explain why a job has its size, or why it waits, and what another slot would be worth to it.",
        ),
        "rounds": Verb(
            "jobs.decisions",
            "List scheduling rounds, or show one: policy, bound, prices and every change with its reason.",
        ),
        "policy": Verb(
            "jobs.decisions",
            "Show the scheduling policy and its parameters, or change them from the next round on.",
        ),
        "whatif": Verb(
            "jobs.whatif",
            "Simulate the cluster with more or fewer nodes, another budget or policy, or other jobs.",
        ),
        "simulate": Verb(
            "jobs.simulate",
            "Compare policies on a list of jobs in virtual time, by completion times and cost. Nothing runs.",
        ),
    },
    "Money": {
        "recommend": Verb(
            "jobs.recommend",
            "Recommend machines to rent for a job, with time and cost to completion, and rent them with --rent.",
        ),
        "offers": Verb(
            "jobs.recommend",
            "List the machines that can be rented, with their prices, or with their cost for one job.",
        ),
        "usage": Verb(
            "cluster.budget", "Show spending, split into useful work, resizes, lost work and idle time."
        ),
        "budget": Verb("cluster.budget", "Show budgets and their spending; set or remove a budget."),
    },
    "Steering jobs": {
        "priority": Verb("jobs.jobs", "Change a job's priority from the next round on."),
        "resize": Verb("jobs.jobs", "Fix the size of a job, or let the scheduler choose it again."),
        "pause": Verb(
            "jobs.jobs", "Stop a job, which may save a checkpoint, and take its slots until `headway resume`."
        ),
        "resume": Verb(
            "jobs.jobs",
            "Continue a job that is paused, or that failed or was cancelled, from its checkpoint.",
        ),
        "cancel": Verb(
            "jobs.jobs", "Cancel a job; `headway resume` continues it from its checkpoint, if it has one."
        ),
    },
    "Nodes": {
        "nodes": Verb("cluster.nodes", "List nodes, and the jobs that hold their slots."),
        "machines": Verb(
            "cluster.machines", "List rented machines, why they were rented and what they have cost."
        ),
        "drain": Verb(
            "cluster.nodes", "Move a node's jobs away after a checkpoint, and schedule no new jobs on it."
        ),
        "cordon": Verb("cluster.nodes", "Schedule no new jobs on a node; its present jobs stay."),
        "uncordon": Verb("cluster.nodes", "Schedule jobs on a cordoned or drained node again."),
        "quarantine": Verb(
            "cluster.nodes",
            "Schedule no jobs on a slot until it is released; a job that holds it moves away.",
        ),
        "release": Verb(
            "cluster.nodes", "Schedule jobs on a slot again, whatever the reason for its quarantine."
        ),
        "join-token": Verb(
            "identity.join_token", "Create, list and revoke the tokens that agents join with."
        ),
    },
    "Access": {
        "login": Verb(
            "identity.login",
            "Sign in to a service, through its identity provider or with a token, for later commands.",
        ),
        "whoami": Verb("identity.login", "Show the user of the present token, its roles and its expiry."),
        "audit": Verb(
            "identity.audit", "Show the audit log of changes and refused requests, newest first (admins)."
        ),
        "token": Verb("identity.token", "Create, list and revoke tokens."),
        "project": Verb("identity.project", "Create and change projects, their members and their quotas."),
        "user": Verb("identity.user", "Add, disable and remove users (admins)."),
        "secret": Verb("identity.secret", "Store credentials that jobs name under `secrets:`."),
        "webhook": Verb("identity.webhook", "Send messages about a project's jobs to other systems by HTTP."),
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
    "sweeps": "sweep",
    "trials": "sweep",
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
