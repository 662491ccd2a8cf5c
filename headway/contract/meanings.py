"""What every reason and every error code means, and what to do about it: the one text behind the reference pages, the
service's `/help` and the links in its answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headway.contract.jobs import Reason


@dataclass(frozen=True, slots=True)
class Meaning:
    """`means` says what is so, `do` what a person does about it; both are sentences."""

    means: str
    do: str


REASONS: Mapping[Reason, Meaning] = MappingProxyType(
    {
        Reason.SUBMITTED: Meaning(
            "The job was taken in and no round has decided about it yet.",
            "Wait a few seconds. If it stays so, no scheduler leads: `headway doctor` says why.",
        ),
        Reason.WAITING_FOR_CAPACITY: Meaning(
            "No slots are free that the job could use and that are worth more to it than to those who hold them.",
            "`headway explain JOB` says who holds them and what one more slot would be worth. Lower `elastic.min`, accept "
            "more kinds in `resources.devices`, raise `priority`, add hosts, or allow renting.",
        ),
        Reason.NO_SUCH_DEVICE: Meaning(
            "No host of this cluster has a device of the kinds that the job accepts, or not as many as its smallest size.",
            "`headway nodes` lists what there is. Change `resources.devices` or `elastic.min`, or add such a host.",
        ),
        Reason.NO_CONTAINER_ENGINE: Meaning(
            "The job runs in an image, and no host in service with devices that it accepts has a container engine.",
            "Start Docker or Podman on such a host, and its agent again, which looks for an engine when it starts; or take `image` out.",
        ),
        Reason.QUOTA: Meaning(
            "The job's project holds as many slots as it may.",
            "Wait until another job of the project ends or shrinks, or ask an admin to raise the quota "
            "(`headway project show PROJECT`).",
        ),
        Reason.BUDGET: Meaning(
            "A budget, or the job's own `goal.max_cost_usd`, leaves no money for what the job would take.",
            "`headway budget` shows how budgets stand. Raise the one that the message names, or let the job run cheaper: "
            "smaller, on spot machines, on another kind. A job that was paused goes on with `headway resume JOB`.",
        ),
        Reason.ALLOCATED: Meaning(
            "The job was given slots and its ranks are being started.",
            "Nothing. A start takes a fraction of a second on a warm host and some seconds on a cold one.",
        ),
        Reason.PROGRESSING: Meaning(
            "The ranks train.",
            "Nothing. `headway describe JOB` shows speed, expected end and cost.",
        ),
        Reason.BETTER_ALLOCATION: Meaning(
            "The job changes its slots because the cluster makes more progress that way.",
            "Nothing: no sample is lost. `headway explain JOB` shows the sizes that were weighed. `headway resize JOB N` "
            "fixes a size, `elastic.resize: never` forbids changes.",
        ),
        Reason.BETTER_BATCH: Meaning(
            "The global batch of a job with `batch.policy: adaptive` changes, within its bounds.",
            "Nothing. The event says the batch and the learning rate before and after; `batch.policy: fixed` forbids it.",
        ),
        Reason.USER_REQUEST: Meaning(
            "Somebody asked for it: a pause, a resume, a size, or the end.",
            "`headway events JOB` says when, `headway audit` who.",
        ),
        Reason.PREEMPTED: Meaning(
            "The job gave its slots to jobs that gain more from them; it has saved a checkpoint and waits.",
            "Nothing: it goes on by itself, and preemptions are not counted against its retries. A higher `priority` or a "
            "project with guaranteed slots makes it rarer.",
        ),
        Reason.NODE_DRAINED: Meaning(
            "An operator takes the host out of service, and the job has left it.",
            "Nothing: it goes on elsewhere. `headway uncordon NODE` lets jobs come back.",
        ),
        Reason.SPOT_RECLAIMED: Meaning(
            "The provider takes a spot machine away; the job left it in time or saved itself.",
            "Nothing. `market: on-demand` avoids it for a price, `market: mixed` lets Headway weigh it.",
        ),
        Reason.NODE_LOST: Meaning(
            "A host has not reported for `HEADWAY_SILENCE_S`. Its slots stay untouched until it is back.",
            "Look whether the host and its network are up, and at its agent's log; the job goes on with its other ranks, "
            "or from its checkpoint on other hosts.",
        ),
        Reason.RANK_LOST: Meaning(
            "A training process was killed from outside.",
            "`headway events JOB` names rank and signal. The others go on in place; if it happens again, look for the "
            "system's out-of-memory killer on that host.",
        ),
        Reason.RETRY_REQUESTED: Meaning(
            "A rank ended with exit code 75: it asks to be started again.",
            "Nothing, as long as `retry.infrastructure` allows. The log says why the script asked.",
        ),
        Reason.START_FAILED: Meaning(
            "A rank could not be started: its bundle, its program, its image or a secret was not there.",
            "The message has the host's own words. Mend what it names and submit again.",
        ),
        Reason.USER_ERROR: Meaning(
            "The script ended with an error of its own.",
            "The message has the last lines of the first rank that failed; `headway logs JOB` has all. With "
            "`retry.user_errors` it is started again that often.",
        ),
        Reason.OUT_OF_MEMORY: Meaning(
            "A rank ran out of device memory or host memory.",
            "Lower `batch.max_local` (accumulation keeps the global batch), take devices with more memory, or raise "
            "`resources.memory_per_slot`.",
        ),
        Reason.HUNG: Meaning(
            "No rank has finished a step for many times the usual duration of one.",
            "`headway logs JOB` ends with the stacks of all ranks from that moment. If long steps are usual for the script, "
            "set `hung_after`.",
        ),
        Reason.BAD_DEVICE: Meaning(
            "A device of the job has faults or is much slower than the others; its slot is quarantined.",
            "`headway nodes` says which and why. It is probed and comes back by itself, or `headway release NODE SLOT` "
            "frees it after repair.",
        ),
        Reason.DEADLINE: Meaning(
            "The job cannot be done by its `goal.deadline` with anything that it could be given.",
            "`headway forecast JOB` shows when it would be done. Move the deadline, allow more slots or more money.",
        ),
        Reason.INVALID_SPEC: Meaning(
            "The job's description cannot be carried out as it is.",
            "The message names the field; `headway plan FILE` checks a file without submitting it.",
        ),
        Reason.COMPLETED: Meaning("Every rank finished.", "Nothing. `headway describe JOB` has the bill."),
    }
)

ERRORS: Mapping[str, Meaning] = MappingProxyType(
    {
        "internal": Meaning(
            "The service met something that it was not made for. Nothing was changed.",
            "Try again; if it stays so, report it with the request id that stands in the answer and in the service's log.",
        ),
        "invalid_field": Meaning(
            "A field of the request is wrong; `errors` lists each with what is expected.",
            "Mend the fields that are named.",
        ),
        "not_found": Meaning(
            "There is no such thing, or it belongs to a project that you are no member of.",
            "List what there is (`headway ps -a`, `headway nodes`, `headway project ls`).",
        ),
        "method_not_allowed": Meaning(
            "The path exists, but not with this method.", "Look the path up in `/docs`."
        ),
        "http_error": Meaning(
            "The request is none that this service could answer.",
            "Look it up in `/docs`; the message says more.",
        ),
        "name_taken": Meaning(
            "A job of the project that has not ended has this name, or a user has it.",
            "Choose another name, or cancel that job first.",
        ),
        "node_name_taken": Meaning(
            "Another agent that is alive has joined under this name.",
            "Give one of the two hosts another `--name`, or stop the other agent.",
        ),
        "idempotency_conflict": Meaning(
            "This `Idempotency-Key` was used before for a different request.",
            "Use a new key for a new request, and the same one only to repeat a request unchanged.",
        ),
        "changed": Meaning(
            "Somebody has changed it since you looked: its ETag is another one.",
            "Read it again, and decide again.",
        ),
        "illegal_transition": Meaning(
            "The job's state does not allow this.",
            "`headway describe JOB` shows its state; the life of a job is drawn in the documentation.",
        ),
        "no_capacity": Meaning(
            "A provider has no machine of this type there now.",
            "Nothing: other types and places are tried.",
        ),
        "provider_refused": Meaning(
            "A provider refuses what it was asked for, and will again.",
            "Look at the provider's own words in the message: limits, permissions, a wrong image or type.",
        ),
        "wrong_token": Meaning(
            "The bearer token is missing, wrong, expired or revoked.",
            "Set HEADWAY_TOKEN or run `headway login`; an agent joins again by itself.",
        ),
        "forbidden": Meaning(
            "You are known, and your role does not allow this.",
            "`headway whoami` shows your roles; an admin of the project can change them.",
        ),
        "last_admin": Meaning(
            "After this nobody could decide any more who may do what.",
            "Make somebody else an admin first: `headway user add NAME --role admin`.",
        ),
        "in_use": Meaning(
            "It cannot go while something needs it.",
            "End what the message names, then try again.",
        ),
        "no_secrets_key": Meaning(
            "The service has no key to keep secrets with.",
            "Its operator sets HEADWAY_SECRETS_KEY or HEADWAY_SECRETS_COMMAND (docs/security.md); `headway up` does so by itself.",
        ),
        "secret_unreadable": Meaning(
            "A stored secret was sealed with a key that the service does not have, or its row was changed.",
            "Set the secret again, or add the key that sealed it to HEADWAY_SECRETS_KEY.",
        ),
        "too_large": Meaning(
            "The upload is over its limit.",
            "Leave data and checkpoints out of `workdir` (a `.headwayignore` lists what stays), or raise "
            "HEADWAY_MAX_BUNDLE_MIB.",
        ),
        "simulation_ended": Meaning(
            "The what-if simulation ended without an answer.", "Its message says why; ask again, or ask less."
        ),
        "unavailable": Meaning(
            "Postgres, Redis or the storage does not answer. Nothing was changed.",
            "Try again after `Retry-After`; the client does so by itself. `headway doctor` says which one it is.",
        ),
        "superseded": Meaning(
            "Another scheduler has taken over; what the older one still wanted was not written.",
            "Nothing.",
        ),
        "too_busy": Meaning(
            "There are more requests than the service can work on, or more than this token may send.",
            "Wait for `Retry-After`; the client does so by itself.",
        ),
    }
)
