"""Meaning and remedy of every reason and every error code.

The reference pages, the service's `/help` and the links in its answers all use these texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headway.contract.views.jobs import Reason


@dataclass(frozen=True, slots=True)
class Meaning:
    """The text for one code, in sentences: `means` describes the situation, `do` the remedy."""

    means: str
    do: str


REASONS: Mapping[Reason, Meaning] = MappingProxyType(
    {
        Reason.SUBMITTED: Meaning(
            "The job was accepted, and no scheduling round has decided about it yet.",
            "Wait a few seconds. If the state lasts, no scheduler is active: `headway doctor` says why.",
        ),
        Reason.AFTER: Meaning(
            "The job waits for the end of another job, which `after` in its job file names, or was cancelled because that "
            "job ended in another way.",
            "`headway graph JOB` shows the chain. After a cancellation, mend and submit the first job that failed, then "
            "the ones after it.",
        ),
        Reason.WAITING_FOR_CAPACITY: Meaning(
            "No slots are free that the job could use, and the jobs that hold them gain more from them.",
            "`headway explain JOB` shows which jobs hold them and what one more slot would gain. Lower "
            "`elastic.min`, accept more kinds in `resources.devices`, raise `priority`, add hosts, or allow "
            "renting.",
        ),
        Reason.NO_SUCH_DEVICE: Meaning(
            "The hosts of this cluster have no device of the kinds that the job accepts, or fewer than its "
            "smallest size.",
            "`headway nodes` lists the devices. Change `resources.devices` or `elastic.min`, or add a "
            "suitable host.",
        ),
        Reason.NO_CONTAINER_ENGINE: Meaning(
            "The job runs in an image, and no host in service with devices that it accepts has a container "
            "engine.",
            "Start Docker or Podman on a suitable host and restart its agent, which looks for an engine "
            "when it starts. Or remove `image` from the job file.",
        ),
        Reason.QUOTA: Meaning(
            "The job's project holds as many slots as its quota allows.",
            "Wait until another job of the project ends or shrinks, or ask an admin to raise the quota "
            "(`headway project show PROJECT`).",
        ),
        Reason.BUDGET: Meaning(
            "A budget, or the job's own `goal.max_cost_usd`, leaves no money for the slots that the job "
            "would use.",
            "`headway budget` shows the budgets. Raise the budget that the message names, or make the job "
            "cheaper: fewer slots, spot machines, another device kind. Resume a paused job with `headway "
            "resume JOB`.",
        ),
        Reason.ALLOCATED: Meaning(
            "The job has slots, and the agents are starting its ranks.",
            "Nothing. A start takes a fraction of a second on a warm host and some seconds on a cold one.",
        ),
        Reason.PROGRESSING: Meaning(
            "The ranks are training.",
            "Nothing. `headway describe JOB` shows speed, expected end and cost.",
        ),
        Reason.BETTER_ALLOCATION: Meaning(
            "The scheduler changes the job's slots because the cluster makes more progress with the new "
            "allocation.",
            "Nothing: no sample is lost. `headway explain JOB` shows the sizes that were considered. "
            "`headway resize JOB N` fixes a size, and `elastic.resize: never` forbids changes.",
        ),
        Reason.BETTER_BATCH: Meaning(
            "The global batch of a job with `batch.policy: adaptive` changes, within its bounds.",
            "Nothing. The event shows the batch and the learning rate before and after. `batch.policy: "
            "fixed` forbids changes.",
        ),
        Reason.USER_REQUEST: Meaning(
            "A user asked for it: a pause, a resume, a size, or the end.",
            "`headway events JOB` shows when, and `headway audit` shows which user.",
        ),
        Reason.PREEMPTED: Meaning(
            "The scheduler gave the job's slots to jobs that gain more from them. The job has saved a "
            "checkpoint and waits.",
            "Nothing: the job resumes by itself, and a preemption does not count against its retries. A "
            "higher `priority` or a project with guaranteed slots makes preemptions rarer.",
        ),
        Reason.NODE_DRAINED: Meaning(
            "An operator is taking the host out of service, and the job has left it.",
            "Nothing: the job continues on other hosts. `headway uncordon NODE` allows jobs on this host "
            "again.",
        ),
        Reason.SPOT_RECLAIMED: Meaning(
            "The provider is reclaiming a spot machine. The job left it in time or saved a checkpoint.",
            "Nothing. `market: on-demand` avoids reclaims at a higher price. With `market: mixed`, Headway "
            "chooses between the markets.",
        ),
        Reason.NODE_LOST: Meaning(
            "A host has not reported for `HEADWAY_SILENCE_S`. Its slots stay reserved until it reports "
            "again.",
            "Check the host, its network and the log of its agent. The job continues with its other ranks, "
            "or from its checkpoint on other hosts.",
        ),
        Reason.RANK_LOST: Meaning(
            "A signal from outside killed a training process, or a process ended as after one (code 143) without a request to stop.",
            "`headway events JOB` names the rank and the signal. The other ranks continue in place. If it "
            "happens again, look for the kernel's out-of-memory killer on that host.",
        ),
        Reason.UNREACHABLE: Meaning(
            "The ranks of the job could not connect to each other, or would be placed on hosts that cannot.",
            "The message names the host and the address that did not answer. `headway doctor --cluster` shows all such "
            "pairs: check firewalls and `--address`. The job gets other hosts, fewer slots, or waits; a failure counts in "
            "`retry.infrastructure`.",
        ),
        Reason.STORAGE_UNAVAILABLE: Meaning(
            "Object storage did not answer while the job started: connections were refused or timed out, or it answered "
            "5xx or 429.",
            "Nothing, if the storage recovers: the job starts again after 1 s to 2 min, as often as needed, and no retry is "
            "counted. The message has the storage's own error. `headway cancel JOB` gives up.",
        ),
        Reason.REPLICAS_DIFFER: Meaning(
            "Ranks that train one model held different parameters, learning rates or trainable parameters. Every checkpoint "
            "is from before the difference.",
            "The message names what differs on which rank: set it alike on every rank. The job goes on from its last "
            "checkpoint, and fails if that happens again without another checkpoint. `audit: none` in the job file allows it.",
        ),
        Reason.RETRY_REQUESTED: Meaning(
            "A rank exited with code 75, which asks for a restart.",
            "Nothing, as long as `retry.infrastructure` allows another restart. The log shows why the "
            "script asked.",
        ),
        Reason.START_FAILED: Meaning(
            "A rank could not be started: its bundle, program, image, packages or secrets were missing.",
            "The message contains the host's own error. Correct what it names and submit the job again.",
        ),
        Reason.USER_ERROR: Meaning(
            "The script ended with an error of its own.",
            "The message contains the last lines of the first rank that failed, and `headway logs JOB` "
            "shows the whole log. `retry.user_errors` sets the number of automatic restarts.",
        ),
        Reason.OUT_OF_MEMORY: Meaning(
            "A rank ran out of device memory or host memory.",
            "Lower `batch.max_local` (accumulation keeps the global batch), choose devices with more "
            "memory, or raise `resources.memory_per_slot`.",
        ),
        Reason.HUNG: Meaning(
            "No rank has finished a step for many times the usual duration of a step.",
            "`headway logs JOB` ends with the stacks of all ranks at that moment. If the script has long "
            "steps, set `hung_after`.",
        ),
        Reason.BAD_DEVICE: Meaning(
            "A device of the job has faults or is much slower than the others. Its slot is quarantined.",
            "`headway nodes` shows the slot and the cause. A probe can release the slot automatically; "
            "after a repair, release it with `headway release NODE SLOT`.",
        ),
        Reason.DEADLINE: Meaning(
            "The job changes its slots for its `goal.deadline`: to a size whose P90 finish meets it, or away "
            "from spot machines.",
            "Nothing. The message gives the size and the P90 finish; `headway forecast JOB` shows every size.",
        ),
        Reason.INVALID_SPEC: Meaning(
            "The job's description cannot be carried out as it is.",
            "The message names the field. `headway plan FILE` checks a file without submitting it.",
        ),
        Reason.NO_PROGRESS: Meaning(
            "Every rank exited with code 0, but no step was ever reported, or the script ended within 10 "
            "seconds of its start.",
            "Read the last lines of its output in the message, and `headway logs JOB`. If the script did "
            "its work, do nothing. To avoid this warning, report steps with `headway.progress` or "
            "`progress.regex`.",
        ),
        Reason.COMPLETED: Meaning(
            "Every rank finished.",
            "Nothing. `headway describe JOB` shows the cost.",
        ),
        Reason.TARGET_REACHED: Meaning(
            "A metric that the job reports reached its `goal.target`. The job saved a checkpoint and ended.",
            "Nothing. To train on, submit the job with another target.",
        ),
        Reason.STOPPED_EARLY: Meaning(
            "`sweep.stop` ended the trial: its metric was not among the best share at its progress. Its slots go to other "
            "jobs.",
            "Nothing. `headway resume JOB` continues it from its checkpoint; it is not ended early again.",
        ),
    }
)

ERRORS: Mapping[str, Meaning] = MappingProxyType(
    {
        "internal": Meaning(
            "The service met an unexpected error. Nothing was changed.",
            "Try again. If the error persists, report it with the request id from the answer, which the "
            "service's log contains too.",
        ),
        "invalid_field": Meaning(
            "A field of the request is invalid. `errors` lists each such field with the expected value.",
            "Correct the fields that `errors` names.",
        ),
        "not_found": Meaning(
            "The requested object does not exist, or it belongs to a project of which you are not a member.",
            "List the objects that you can see (`headway ps -a`, `headway nodes`, `headway project ls`).",
        ),
        "method_not_allowed": Meaning(
            "The path exists, but not with this method.",
            "Look the path up in `/docs`.",
        ),
        "http_error": Meaning(
            "The service cannot answer this request.",
            "Look the request up in `/docs`. The message contains the details.",
        ),
        "name_taken": Meaning(
            "A job of the project that has not ended has this name, or a user has it.",
            "Choose another name, or cancel that job first.",
        ),
        "node_name_taken": Meaning(
            "Another running agent has joined under this name.",
            "Give one of the two hosts another `--name`, or stop the other agent.",
        ),
        "deadline_refused": Meaning(
            "The job has `goal.admit: reject`, and its deadline is not feasible or has no forecast.",
            "The message names the nearest feasible one. Change `goal.deadline` or `elastic`, or set `goal.admit: try`.",
        ),
        "idempotency_conflict": Meaning(
            "This `Idempotency-Key` was used before for a different request.",
            "Use a new key for a new request. Use the same key only to repeat a request unchanged.",
        ),
        "bundle_refused": Meaning(
            "The upload is not an archive, or it contains an unsafe entry: a path through a link, a link "
            "that leads out of the folder, a device, or a name that is too long.",
            "The message names the entry. Exclude it with `.headwayignore`, or replace the link by a file. "
            "`headway submit` packs a valid archive.",
        ),
        "changed": Meaning(
            "Another request has changed the object since you read it, so its ETag differs.",
            "Read it again, and repeat your change if you still want it.",
        ),
        "illegal_transition": Meaning(
            "The job's state does not allow this operation.",
            "`headway describe JOB` shows its state. The documentation shows the life cycle of a job.",
        ),
        "no_capacity": Meaning(
            "A provider has no machine of this type there now.",
            "Nothing: Headway tries other types and places.",
        ),
        "provider_refused": Meaning(
            "A provider refuses the request, and would refuse it again.",
            "Read the provider's error in the message: limits, permissions, a wrong image or a wrong "
            "instance type.",
        ),
        "rental_refused": Meaning(
            "A price, a limit or a budget forbids the machines, or their job has ended.",
            "Choose another plan with `headway recommend --rent --plan N`, or raise the limit in the message.",
        ),
        "wrong_token": Meaning(
            "The bearer token is missing, wrong, expired or revoked.",
            "Set HEADWAY_TOKEN or run `headway login`. An agent joins again by itself.",
        ),
        "forbidden": Meaning(
            "You are signed in, and your role does not allow this operation.",
            "`headway whoami` shows your roles. An admin of the project can change them.",
        ),
        "last_admin": Meaning(
            "This change would leave the cluster without an admin.",
            "Make another user an admin first: `headway user add NAME --role admin`.",
        ),
        "in_use": Meaning(
            "The object cannot be deleted while another object needs it.",
            "End or delete what the message names, then try again.",
        ),
        "no_secrets_key": Meaning(
            "The service has no key with which to encrypt secrets.",
            "Its operator sets HEADWAY_SECRETS_KEY or HEADWAY_SECRETS_COMMAND (docs/security.md). `headway "
            "up` does so by itself.",
        ),
        "secret_unreadable": Meaning(
            "A stored secret was encrypted with a key that the service does not have, or its row was "
            "changed.",
            "Set the secret again, or add its encryption key to HEADWAY_SECRETS_KEY.",
        ),
        "too_large": Meaning(
            "The upload is larger than its limit.",
            "Keep data and checkpoints out of `workdir` (list them in a `.headwayignore`), or raise "
            "HEADWAY_MAX_BUNDLE_MIB.",
        ),
        "simulation_ended": Meaning(
            "The what-if simulation ended without a result.",
            "Its message says why. Ask again, or ask a smaller question.",
        ),
        "too_many_commands": Meaning(
            "As many commands as a job may have run beside its ranks.",
            "Wait for one of them to end, or end one with Ctrl-C.",
        ),
        "agent_too_old": Meaning(
            "The agent of the rank's node has a version that cannot run commands beside ranks.",
            "Update the agent of the node and start it again; its ranks go on meanwhile.",
        ),
        "unavailable": Meaning(
            "Postgres, Redis or the storage does not answer. Nothing was changed.",
            "Try again after `Retry-After`; the client does so by itself. `headway doctor` shows which of "
            "them fails.",
        ),
        "superseded": Meaning(
            "Another scheduler has taken over. Pending changes of the older one were not written.",
            "Nothing.",
        ),
        "too_busy": Meaning(
            "The service receives more requests than it can handle, or this token has exceeded its rate "
            "limit.",
            "Wait for `Retry-After`; the client does so by itself.",
        ),
    }
)
