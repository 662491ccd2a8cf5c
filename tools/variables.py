"""What every variable means that a deployment may set; their names, defaults and bounds are read from the code (`tools.settings`).

Links are relative to docs/reference/.
"""

from __future__ import annotations

from collections.abc import Mapping

STORES = {
    "HEADWAY_DATABASE_URL": "`postgresql://user:password@host/db`. PostgreSQL 14 or newer.",
    "HEADWAY_REDIS_URL": "`redis://:password@host:6379/0`. Redis 6.2 or newer; nothing in it needs to be kept. The user must be "
    "allowed to make users (`+acl`).",
    "HEADWAY_AGENT_REDIS_URL": "The same Redis as agents reach it, with the same number of the database; else `HEADWAY_REDIS_URL`. "
    "Each agent gets a user and a password of its own in it.",
    "HEADWAY_REDIS_ACL": "`off`: all agents share `HEADWAY_AGENT_REDIS_URL`, password and all. For a Redis in which one cannot make "
    "users.",
    "HEADWAY_STORAGE_URL": "`s3://bucket/prefix`, `gs://…`, `az://…`, or `file:///folder` that every host shares: bundles, logs, "
    "checkpoints. Credentials are the usual ones of each provider (`AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT_URL`, …).",
    "HEADWAY_STORAGE_ROLE": "ARN of a role that may read and write `checkpoints/` in an `s3://` storage: ranks get keys from it for "
    "their own job ([how](../operations/storage.md)).",
    "HEADWAY_STORAGE_SIGNED": "`on`: the service signs each request of a rank to an `s3://` storage, so that no rank holds a key; the "
    "other way to the end of `HEADWAY_STORAGE_ROLE`.",
}

WAY_IN = {
    "HEADWAY_HOST": "Address at which the API listens. `0.0.0.0` for all; then it must speak [TLS](../tls.md), here or at a proxy.",
    "HEADWAY_PORT": "Port of the API.",
    "HEADWAY_PUBLIC_URL": "The API as browsers and rented machines reach it; else `http://HOST:PORT`, with a certificate `https://`.",
    "HEADWAY_TLS_CERT": "Certificate (PEM) with which the API speaks [TLS](../tls.md); goes with `HEADWAY_TLS_KEY`.",
    "HEADWAY_TLS_KEY": "The certificate's key (PEM).",
    "HEADWAY_CA_FILE": "Certificates (PEM) of authorities to trust beside those of the system; agents and clients read it, too.",
    "HEADWAY_TRUSTED_PROXIES": "Addresses or networks of proxies whose word on where a request comes from (`X-Forwarded-For`) is "
    "taken.",
    "HEADWAY_RATE_PER_S": "Requests that one token may make per second, on average; 0: no limit "
    "([limits](../operations/access.md#what-anybody-may-send)).",
    "HEADWAY_MAX_BUNDLE_MIB": "Largest upload of a job's folder, in MiB.",
    "HEADWAY_API_TOKEN": "Whoever bears it is an admin. Leave it unset where an admin was made with `python -m service create-admin`.",
    "HEADWAY_METRICS_TOKEN": "What monitoring shows as a bearer token to read `/metrics`; none: it is open.",
    "HEADWAY_METRICS_LISTEN": "`[ADDRESS:]PORT` at which a scheduler without an API beside it answers `/metrics`, on loopback without "
    "an address; none: it does not ([monitoring](../monitoring.md)).",
}

SIGN_IN = {
    "HEADWAY_OIDC_ISSUER": "The provider's issuer, to the letter: `https://id.example.com/realms/ml`. Without it people sign in with "
    "tokens ([signing in](../operations/access.md#signing-in)).",
    "HEADWAY_OIDC_CLIENT_ID": "As what Headway is registered there; with an issuer.",
    "HEADWAY_OIDC_CLIENT_SECRET": "Its secret; without one it is a public client. PKCE is used either way.",
    "HEADWAY_OIDC_DEVICE_CLIENT_ID": "As what command lines are registered, a public client with the device flow; else the client id.",
    "HEADWAY_OIDC_SCOPES": "What is asked for.",
    "HEADWAY_OIDC_NAME_CLAIM": "What names people; `email` by default, which counts only where the provider says `email_verified`.",
    "HEADWAY_OIDC_ADMINS": "Names that become admins everywhere at their first sign-in.",
    "HEADWAY_OIDC_DEFAULT_ROLE": "Whoever the provider knows gets this role; without it only those come in whom an admin has added.",
    "HEADWAY_OIDC_DEFAULT_PROJECT": "In which project they get it; `default`.",
}

KEEPING = {
    "HEADWAY_SILENCE_S": "A node that was silent for so many seconds is LOST, and its jobs recover elsewhere; above 1,665 "
    "nodes, nine seconds for each 1,000 of them, if that is longer. At most "
    "`HEADWAY_LEASE_S`.",
    "HEADWAY_LEASE_S": "An agent that has not reached the API for so many seconds kills its ranks: how long an outage of the API or of "
    "PostgreSQL may last without stopping training.",
    "HEADWAY_KEEP_DAYS": "Days after which ended jobs, their events, logs and checkpoints are deleted "
    "([what grows](../operations/growth.md)).",
    "HEADWAY_LOG_FORMAT": "`json` or `text`, of log lines. Without it the service writes text, an agent JSON unless it writes to a terminal.",
    "HEADWAY_SHARE_HALF_LIFE_D": "Days after which slots that a project has used count half for its "
    "[share](../tenants.md#fair-share).",
    "HEADWAY_SECRETS_KEY": "Keys of secrets, 32 random bytes each in base64 or hexadecimal digits, separated by commas, the newest "
    "first; the same for all APIs ([secrets](../security.md#secrets)).",
    "HEADWAY_SECRETS_COMMAND": "A program that wraps the keys, in place of the first of them.",
}

MONEY = {
    "HEADWAY_PRICES": "Dollars that an hour of one slot costs, by device kind: `cpu=0.05,a100=2.2`. Kinds that are not named have no "
    "price ([the bill](../money.md)).",
    "HEADWAY_PROVIDERS": "Where machines are rented: `ec2`, `local`, separated by commas; `static` is nowhere "
    "([renting](../renting.md)).",
    "HEADWAY_MAX_MACHINES": "Most rented machines at once.",
    "HEADWAY_MAX_USD_PER_H": "Most dollars an hour of all rented machines together; none: budgets alone bound it.",
    "HEADWAY_IDLE_S": "Seconds for which a rented machine is kept that is not worth its price.",
    "HEADWAY_JOIN_TIMEOUT_S": "Seconds after which a rented machine is given back whose agent has not joined.",
    "HEADWAY_RENT_EVERY_S": "Seconds between two looks at providers and machines.",
    "HEADWAY_LOCAL_OFFERS": "File of offers of the provider `local`; `headway up --rent FILE` sets it.",
    "HEADWAY_LOCAL_MACHINES": "Folder of its machines; `headway up --rent FILE` sets it.",
    "HEADWAY_CLUSTER": "Whose machines they are at EC2, as a tag. Two clusters in one account need two names.",
    "HEADWAY_EC2_REGION": "Such as `us-east-1`. Needed with the provider `ec2`.",
    "HEADWAY_EC2_IMAGE": "The AMI, with the agent in it. Needed with the provider `ec2`.",
    "HEADWAY_EC2_INSTANCE_TYPES": "What may be rented: `g4dn.xlarge,g5.*`. Needed with the provider `ec2`.",
    "HEADWAY_EC2_SUBNETS": "`us-east-1a=subnet-…,us-east-1b=subnet-…`: only these zones are used; else every zone's default.",
    "HEADWAY_EC2_SECURITY_GROUPS": "Of every machine; else the network's default.",
    "HEADWAY_EC2_INSTANCE_PROFILE": "Name of the profile with the machines' role.",
    "HEADWAY_EC2_USER_DATA": "File with a start script of your own.",
}

AGENT = {
    "HEADWAY_URL": "The API. `--url`.",
    "HEADWAY_JOIN_TOKEN": "What a new agent joins with (`headway join-token create`). `--token`. Set for the service too, any agent "
    "may join with it for ever; renting needs it there.",
    "HEADWAY_ISOLATION": "How jobs are kept apart: `users`, `landlock`, `none`; else the strongest that works "
    "([isolation](../isolation.md)). `--isolation`.",
    "HEADWAY_USER_IDS": "`FIRST-LAST`: numbers of users that jobs may get. `--user-ids`.",
    "HEADWAY_AGENT_METRICS_LISTEN": "`[ADDRESS:]PORT` at which the agent answers `/metrics`; none: it does not "
    "([monitoring](../monitoring.md)). `--metrics-listen`.",
    "HEADWAY_PRIVATE": "Folders that no job may look into, separated by colons.",
    "HEADWAY_METADATA": "`ec2`: listen for notices that the provider takes the machine away.",
    "HEADWAY_METADATA_URL": "The same, of another service with EC2's paths.",
}

CLIENT = {
    "HEADWAY_TOKEN": "A token; else what `headway login` or `headway up` wrote.",
    "HEADWAY_PROJECT": "The project of every verb that has `--project`.",
    "HEADWAY_HOME": "Where `headway up` keeps its data and the client its configuration; `~/.headway`.",
    "HEADWAY_DATA": "Folder with measured profiles for `headway simulate` and benchmarks.",
}

SECTIONS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "Stores": ("Of the service: every process of it needs the first three.", STORES),
    "The way in": ("Of the service.", WAY_IN),
    "Signing in": ("Of the service.", SIGN_IN),
    "Keeping": ("Of the service.", KEEPING),
    "Money and machines": ("Of the service.", MONEY),
    "Agents": ("Beside the options of `headway agent`, which are below.", AGENT),
    "Command line and `headway up`": ("The client reads `HEADWAY_URL`, too.", CLIENT),
}

RANK = {
    "RANK": "Number of this process among all of the job, from 0. Changes when the job's size does.",
    "LOCAL_RANK": "Among those on this host: which of the visible GPUs is its own.",
    "GROUP_RANK": "Number of this host among those of the job.",
    "ROLE_RANK": "As `RANK`.",
    "ROLE_NAME": "Always `default`.",
    "WORLD_SIZE": "Processes of the job. Changes when the job's size does.",
    "LOCAL_WORLD_SIZE": "Those of them on this host.",
    "ROLE_WORLD_SIZE": "As `WORLD_SIZE`.",
    "GROUP_WORLD_SIZE": "Hosts of the job.",
    "MASTER_ADDR": "Where the processes meet: the address of a host of the job.",
    "MASTER_PORT": "The port there, of the agent's `--ports`.",
    "TORCHELASTIC_RUN_ID": "The job's id.",
    "TORCHELASTIC_RESTART_COUNT": "Starts before this one.",
    "TORCHELASTIC_MAX_RESTARTS": "As `TORCHELASTIC_RESTART_COUNT`.",
    "TORCHELASTIC_USE_AGENT_STORE": "`True` where the agent keeps the store at `MASTER_ADDR` and `MASTER_PORT`.",
    "TORCHELASTIC_ERROR_FILE": "A file for the script's error.",
    "CUDA_VISIBLE_DEVICES": "UUIDs of all GPUs of the job on this host, in the order of `LOCAL_RANK`; empty on CPU slots.",
    "OMP_NUM_THREADS": "Threads of a process: 1 on a CPU slot, else its share of the cores, or `resources.cpus_per_slot`. The job file's "
    "`env` goes before it.",
    "PYTHONUNBUFFERED": "`1`, so that what a script prints is in the log at once. The job file's `env` goes before it.",
    "HEADWAY_JOB_ID": "The job's id: the same in every attempt.",
    "HEADWAY_JOB_NAME": "Its name.",
    "HEADWAY_PROJECT": "Its project.",
    "HEADWAY_ATTEMPT": "Starts so far, this one included.",
    "HEADWAY_GENERATION": "Version of the job's allocation that the process was started for. It stays, while `run.generation` goes on.",
    "HEADWAY_MEMBER": "Name of the process for life: that generation, and the rank in it.",
    "HEADWAY_JOINS": "`1` for a newcomer to a training that runs; else unset.",
    "HEADWAY_CONTROL": "A folder through which the library talks to the agent.",
    "HEADWAY_CHECKPOINT_URI": "Where this job's checkpoints go.",
    "HEADWAY_CHECKPOINT_EVERY_S": "`checkpoint.every`, in seconds; unset for `auto`.",
    "HEADWAY_CHECKPOINT_KEEP": "`checkpoint.keep`.",
    "HEADWAY_GLOBAL_BATCH": "`batch.global`; unset where the job file leaves it to the script.",
    "HEADWAY_MAX_LOCAL_BATCH": "`batch.max_local`; unset likewise.",
    "HEADWAY_MAX_GLOBAL_BATCH": "`batch.max_global`, with `batch.policy: adaptive`.",
    "HEADWAY_START_GLOBAL_BATCH": "With `adaptive`: the batch that the job had come to before this start.",
    "HEADWAY_LR_RULE": "`batch.lr_rule`, unless it is `none`.",
    "HEADWAY_TRACKERS": "Where values of `run.report` go beside the service: `tensorboard`, `mlflow`, with commas between.",
}
