"""Meanings of the variables that a deployment may set; `tools.settings` reads their names, defaults and bounds from the code.

Links are relative to docs/reference/.
"""

from __future__ import annotations

from collections.abc import Mapping

STORES = {
    "HEADWAY_DATABASE_URL": "`postgresql://user:password@host/db`; PostgreSQL 14 or newer.",
    "HEADWAY_REDIS_URL": "`redis://:password@host:6379/0`; Redis 6.2 or newer; persistence is not needed. The user must be allowed to create "
    "users (`+acl`).",
    "HEADWAY_AGENT_REDIS_URL": "The same Redis and database number, as agents reach it; default: `HEADWAY_REDIS_URL`. Each agent gets its "
    "own user and password.",
    "HEADWAY_REDIS_ACL": "`off`: all agents share the URL with its password, for a Redis that cannot create users.",
    "HEADWAY_STORAGE_URL": "Bundles, logs and checkpoints: `s3://bucket/prefix`, `gs://…`, `az://…`, or `file:///folder` shared by all "
    "hosts. Credentials are the provider's usual ones (`AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT_URL`, …).",
    "HEADWAY_STORAGE_ROLE": "ARN of a role that may read and write `checkpoints/` in an `s3://` storage; ranks get its keys for their own "
    "job ([storage](../operations/storage.md)).",
    "HEADWAY_STORAGE_SIGNED": "`on`: the service signs each request of a rank to an `s3://` storage; an alternative to "
    "`HEADWAY_STORAGE_ROLE`.",
}

API = {
    "HEADWAY_HOST": "Address of the API. `0.0.0.0` for all; then use [TLS](../tls.md), here or at a proxy.",
    "HEADWAY_PORT": "Port of the API.",
    "HEADWAY_PUBLIC_URL": "URL of the API for browsers and rented machines; default: `http://HOST:PORT`, or `https://` with a certificate.",
    "HEADWAY_TLS_CERT": "TLS certificate (PEM) of the API, with `HEADWAY_TLS_KEY`.",
    "HEADWAY_TLS_KEY": "The certificate's key (PEM).",
    "HEADWAY_CA_FILE": "Certificates (PEM) of additional authorities to trust; agents and clients read it too.",
    "HEADWAY_TRUSTED_PROXIES": "Addresses or networks of proxies whose `X-Forwarded-For` is trusted.",
    "HEADWAY_WEBHOOK_NETWORKS": "Networks, such as `10.0.0.0/8`, that [webhooks](../guides/webhooks.md) may send to although they are not "
    "public.",
    "HEADWAY_RATE_PER_S": "Average requests per second of one token; 0: no limit "
    "([limits](../operations/access.md#request-limits)).",
    "HEADWAY_MAX_BUNDLE_MIB": "Maximum size of an uploaded job folder.",
    "HEADWAY_API_TOKEN": "A token with admin rights. Unset it after `python -m service create-admin`.",
    "HEADWAY_METRICS_TOKEN": "Bearer token of monitoring for `/metrics`; without it, any token of a viewer of all projects.",
    "HEADWAY_METRICS_PUBLIC": "`true`: `/metrics`, with names of projects and budgets, needs no token.",
    "HEADWAY_METRICS_LISTEN": "`[ADDRESS:]PORT` for `/metrics` of a scheduler without an API, on loopback by default; unset: none "
    "([monitoring](../monitoring.md)).",
}

SIGN_IN = {
    "HEADWAY_OIDC_ISSUER": "The provider's exact issuer: `https://id.example.com/realms/ml`. Unset: people sign in with tokens "
    "([signing in](../operations/access.md#signing-in)).",
    "HEADWAY_OIDC_CLIENT_ID": "Client id at the provider; needed with an issuer.",
    "HEADWAY_OIDC_CLIENT_SECRET": "Its secret; unset for a public client. PKCE is always used.",
    "HEADWAY_OIDC_DEVICE_CLIENT_ID": "Public client with the device flow, for command lines; default: the client id.",
    "HEADWAY_OIDC_SCOPES": "Requested scopes.",
    "HEADWAY_OIDC_NAME_CLAIM": "Claim with a person's name; default: `email`, which requires `email_verified`.",
    "HEADWAY_OIDC_ADMINS": "Names that become global admins at their first sign-in.",
    "HEADWAY_OIDC_DEFAULT_ROLE": "Role for everyone whom the provider knows; unset: only users added by an admin may sign in.",
    "HEADWAY_OIDC_DEFAULT_PROJECT": "Project of that role; default: `default`.",
}

OPERATION = {
    "HEADWAY_SILENCE_S": "A node silent for this long is LOST, and its jobs recover elsewhere; in clusters above 1,665 nodes at least nine "
    "seconds per 1,000 nodes. At most `HEADWAY_LEASE_S`.",
    "HEADWAY_LEASE_S": "An agent that cannot reach the API for this long kills its ranks. Shorter outages stop no training.",
    "HEADWAY_MIN_RUN_S": "Minimum run time before another job's gain may vacate a job; at least twenty times the cost of its start and stop "
    "([competing jobs](../allocation.md#jobs-that-compete)).",
    "HEADWAY_MAX_WAIT_S": "A waiting job gets its turn after this long while the minimums of all jobs do not fit "
    "([competing jobs](../allocation.md#jobs-that-compete)).",
    "HEADWAY_KEEP_DAYS": "Retention of ended jobs with their events, logs and checkpoints ([growth](../operations/growth.md)).",
    "HEADWAY_LOG_FORMAT": "`json` or `text`. Default: text for the service and for agents on a terminal, otherwise JSON.",
    "HEADWAY_SHARE_HALF_LIFE_D": "Half-life of a project's past use in its [share](../tenants.md#fair-share).",
    "HEADWAY_SECRETS_KEY": "Keys of secrets, newest first, separated by commas: 32 random bytes each, in base64 or hexadecimal; the same for "
    "all APIs ([secrets](../security.md#secrets)).",
    "HEADWAY_SECRETS_COMMAND": "Program that wraps the keys, instead of the first of them.",
}

MONEY = {
    "HEADWAY_PRICES": "Dollars per slot-hour, by device kind: `cpu=0.05,a100=2.2`; other kinds have no price ([money](../money.md)).",
    "HEADWAY_PROVIDERS": "Where to rent machines: `ec2`, `local`, separated by commas; `static`: nowhere ([renting](../renting.md)).",
    "HEADWAY_MAX_MACHINES": "Maximum number of rented machines.",
    "HEADWAY_MAX_USD_PER_H": "Maximum dollars per hour for them; unset: only budgets limit it.",
    "HEADWAY_IDLE_S": "Time for which a machine not worth its price is kept.",
    "HEADWAY_JOIN_TIMEOUT_S": "Time for a machine's agent to join; then the machine is returned.",
    "HEADWAY_RENT_EVERY_S": "Interval between checks of providers and machines.",
    "HEADWAY_LOCAL_OFFERS": "File with offers of the provider `local`; set by `headway up --rent FILE`.",
    "HEADWAY_LOCAL_MACHINES": "Folder of its machines; set by `headway up --rent FILE`.",
    "HEADWAY_CLUSTER": "Name of this cluster in the tags, job names or labels of its machines; unique within an account.",
    "HEADWAY_EC2_REGION": "Region, such as `us-east-1`; needed for `ec2`.",
    "HEADWAY_EC2_IMAGE": "AMI with the agent; needed for `ec2`.",
    "HEADWAY_EC2_INSTANCE_TYPES": "Types to rent: `g4dn.xlarge,g5.*`; needed for `ec2`.",
    "HEADWAY_EC2_SUBNETS": "`us-east-1a=subnet-…,us-east-1b=subnet-…`: use only these zones; default: the default subnet of every zone.",
    "HEADWAY_EC2_SECURITY_GROUPS": "Security groups of every machine; default: the network's.",
    "HEADWAY_EC2_INSTANCE_PROFILE": "Instance profile with the machines' role.",
    "HEADWAY_EC2_USER_DATA": "File with your own start script.",
    "HEADWAY_SLURM_PARTITIONS": "`scavenger=0.40,gpu=2`: partitions to use, with the USD of a slot for an hour; needed for `slurm`.",
    "HEADWAY_SLURM_PYTHON": "Interpreter on the nodes, with `headway[agent,train]`; default: the service's own.",
    "HEADWAY_SLURM_OPTIONS": "Further options of `sbatch`: `--account=ml --qos=low --time=4:00:00`.",
    "HEADWAY_SLURM_SETUP": "File with lines of shell that run on a node before its agent.",
    "HEADWAY_SLURM_LOG": "Log of an agent, as in `sbatch --output`.",
    "HEADWAY_SLURM_WAIT_S": "Seconds that a request may wait in Slurm's queue; longer counts as no free node.",
    "HEADWAY_KUBERNETES_NAMESPACE": "Namespace of pods; default: that of the service's pod or of its kubeconfig.",
    "HEADWAY_KUBERNETES_IMAGE": "Image of pods, with the agent as its entry point; needed for `kubernetes`.",
    "HEADWAY_KUBERNETES_SPOT": "`a100=0.90,cpu=0.02`: the USD of a slot for an hour by device kind, in pods that may be preempted; this or the next is needed.",
    "HEADWAY_KUBERNETES_ON_DEMAND": "The same in pods that nothing preempts.",
    "HEADWAY_KUBERNETES_SPOT_CLASS": "PriorityClass of spot pods.",
    "HEADWAY_KUBERNETES_ON_DEMAND_CLASS": "PriorityClass of the others.",
    "HEADWAY_KUBERNETES_QUEUE": "LocalQueue of Kueue for pods.",
    "HEADWAY_KUBERNETES_SLOT": "`cpu=8,memory=64Gi`: what a slot requests beside its GPU.",
    "HEADWAY_KUBERNETES_TOPOLOGY": "`rack=LABEL,zone=LABEL`: labels of nodes that are placement levels.",
    "HEADWAY_KUBERNETES_POD": "YAML file with further fields of a pod's `spec`.",
    "HEADWAY_KUBERNETES_GRACE_S": "Seconds from SIGTERM to SIGKILL of a pod.",
    "HEADWAY_KUBERNETES_WAIT_S": "Seconds that a pod may wait for a node; longer counts as no free node.",
}

AGENT = {
    "HEADWAY_URL": "`--url`.",
    "HEADWAY_JOIN_TOKEN": "`--token`. If the service has it too, any agent may join with it for ever; renting requires that.",
    "HEADWAY_ISOLATION": "`--isolation` ([isolation](../isolation.md)).",
    "HEADWAY_SYSTEM_CALLS": "`filtered` (default) or `all` (`--system-calls`; [isolation](../isolation.md#system-calls)).",
    "HEADWAY_UMASK": "Permissions that files of ranks do not get (`--umask`).",
    "HEADWAY_ENVIRONMENTS_SIZE": "Disk space for the [Python environments of jobs](../guides/environments.md) (`--environments-size`).",
    "HEADWAY_USER_IDS": "`--user-ids`, as `FIRST-LAST`.",
    "HEADWAY_SHARE_GPUS": "`1`: offer GPUs that another agent of the host offers too; for tests.",
    "HEADWAY_LABELS": "`--labels` ([racks and zones](../guides/mixed-machines.md#racks-and-zones)).",
    "HEADWAY_AGENT_METRICS_LISTEN": "`--metrics-listen`, as `[ADDRESS:]PORT` ([monitoring](../monitoring.md)).",
    "HEADWAY_PRIVATE": "Folders that no job may read, separated by colons.",
    "HEADWAY_PILOT_TIMES": "Start and end of the batch job in UTC, as `squeue` prints them; default: Slurm's own variables.",
    "HEADWAY_METADATA": "`ec2`: watch for interruption notices of the provider; `slurm`: SIGTERM and the time limit of its batch job are notices; `kubernetes`: SIGTERM is.",
    "HEADWAY_KILL_WAIT_S": "Seconds from SIGTERM to SIGKILL: Slurm's `KillWait`, or a pod's grace period; default: 30.",
    "HEADWAY_METADATA_URL": "Another metadata service with EC2's paths.",
}

CLIENT = {
    "HEADWAY_TOKEN": "Token; default: the one of `headway login` or `headway up`.",
    "HEADWAY_PROJECT": "Default of `--project`.",
    "HEADWAY_HOME": "Data of `headway up` and configuration of the client; default: `~/.headway`.",
    "HEADWAY_DATA": "Folder with measured profiles for `headway simulate` and benchmarks.",
}

SECTIONS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "Stores": ("Every process of the service needs the database, Redis and the storage.", STORES),
    "API": ("Of the service.", API),
    "Signing in": ("Of the service.", SIGN_IN),
    "Operation": ("Of the service.", OPERATION),
    "Money and machines": ("Of the service.", MONEY),
    "Agents": ("In addition to the options of `headway agent` below.", AGENT),
    "Command line and `headway up`": ("The client also reads `HEADWAY_URL`.", CLIENT),
}

RANK = {
    "RANK": "Rank in the job; a resize may change it.",
    "LOCAL_RANK": "Rank on this host: index of its GPU among the visible ones.",
    "GROUP_RANK": "Index of this host in the job.",
    "ROLE_RANK": "Same as `RANK`.",
    "ROLE_NAME": "Always `default`.",
    "WORLD_SIZE": "Number of processes of the job; a resize changes it.",
    "LOCAL_WORLD_SIZE": "Number of them on this host.",
    "ROLE_WORLD_SIZE": "Same as `WORLD_SIZE`.",
    "GROUP_WORLD_SIZE": "Number of hosts of the job.",
    "MASTER_ADDR": "Host of the rendezvous.",
    "MASTER_PORT": "Its port, one of the agent's `--ports`.",
    "TORCHELASTIC_RUN_ID": "Id of the job.",
    "TORCHELASTIC_RESTART_COUNT": "Number of earlier starts.",
    "TORCHELASTIC_MAX_RESTARTS": "Same as `TORCHELASTIC_RESTART_COUNT`.",
    "TORCHELASTIC_USE_AGENT_STORE": "`True` if the agent runs the store at `MASTER_ADDR` and `MASTER_PORT`.",
    "TORCHELASTIC_ERROR_FILE": "File for the script's error.",
    "CUDA_VISIBLE_DEVICES": "UUIDs of the job's GPUs on this host, by `LOCAL_RANK`; empty on CPU slots.",
    "OMP_NUM_THREADS": "Threads of a process: 1 on a CPU slot, otherwise its share of the cores or `resources.cpus_per_slot`. `env` overrides "
    "it.",
    "RES_OPTIONS": "Resolver: 1 s for each of three attempts, since torch looks up the name of every peer. `env` and the agent's own environment override it.",
    "PYTHONUNBUFFERED": "So that output appears in the log at once. `env` overrides it.",
    "HEADWAY_JOB_ID": "Id of the job, the same in every attempt.",
    "HEADWAY_JOB_NAME": "Name of the job.",
    "HEADWAY_PROJECT": "Project of the job.",
    "HEADWAY_ATTEMPT": "Number of starts so far, including this one.",
    "HEADWAY_GENERATION": "Generation for which the process was started; unlike `run.generation`, it stays.",
    "HEADWAY_MEMBER": "Permanent name of the process: that generation and its rank there.",
    "HEADWAY_BESIDE": "Only in a command of [`headway exec`](../guides/commands.md), which lacks the variables for joining: control folder of "
    "the ranks.",
    "HEADWAY_COMMAND": "Only there: id of the command.",
    "HEADWAY_JOINS": "`1` if the process joins a running training; otherwise unset.",
    "HEADWAY_REACH": "Addresses that a joining process must reach: the stores of the present members' nodes.",
    "HEADWAY_OUTPUT_DIR": "Output folder, with the same files on every node of the job.",
    "HEADWAY_PARAM_LR": "Value of the parameter `lr` under [parameters](../job-file.md#top-level) or [sweep](../guides/sweeps.md), one variable for each.",
    "HEADWAY_AFTER_PREP": "Folder with the output files of the job `prep` under [after](../guides/chains.md), one variable for each.",
    "HEADWAY_CONTROL": "Folder for messages between library and agent.",
    "HEADWAY_CHECKPOINT_URI": "Storage of the job's checkpoints.",
    "HEADWAY_CHECKPOINT_EVERY_S": "`checkpoint.every` in seconds; unset for `auto`.",
    "HEADWAY_CHECKPOINT_KEEP": "`checkpoint.keep`.",
    "HEADWAY_CHECKPOINT_NAME": "The last checkpoint that the job reported, which is found even if the store does not list it yet.",
    "HEADWAY_LOSSES_PER_H": "Expected losses per hour that need a checkpoint, with `checkpoint.every: auto`.",
    "HEADWAY_GLOBAL_BATCH": "`batch.global`, if set.",
    "HEADWAY_MAX_LOCAL_BATCH": "`batch.max_local`, if set.",
    "HEADWAY_MAX_GLOBAL_BATCH": "`batch.max_global`, with `batch.policy: adaptive`.",
    "HEADWAY_START_GLOBAL_BATCH": "Present global batch of an adaptive job at this start.",
    "HEADWAY_BATCH_EFFECT": "Exponent of the statistical efficiency by which the ranks count progress, unless 1.",
    "HEADWAY_LR_RULE": "`batch.lr_rule`, unless `none`.",
    "HEADWAY_BALANCE": "`batch.balance`, unless the default.",
    "HEADWAY_SPEEDS": "Expected relative speeds of the ranks, with slots of two kinds ([elastic.mix](../guides/mixed-machines.md)).",
    "HEADWAY_MESH": "Mesh of the ranks at the start, with `parallel`: `replicate=1,fsdp=2,tp=2`.",
    "HEADWAY_EXIT_WITHIN_S": "`exit_within` in seconds.",
    "HEADWAY_AUDIT": "`none` with `audit: none`, or on slots of two kinds (`elastic.mix`).",
    "HEADWAY_HOST_SIGNALS": "`1` in a pilot of Slurm: a SIGTERM that the agent does not announce waits five seconds for its word.",
    "HEADWAY_AUDIT_NEAR": "`1` on slots of two kinds: ranks compare their models up to rounding.",
    "HEADWAY_REDUNDANCY": "`elastic.redundancy`, if it is not `none`.",
    "HEADWAY_MIN_DEPTH": "`elastic.partial_backprop.min_depth`, if set.",
    "HEADWAY_TRACKERS": "Additional trackers of `run.report`: `tensorboard,mlflow`.",
}
