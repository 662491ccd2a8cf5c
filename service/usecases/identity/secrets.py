"""Secrets of projects: set them, give them to agents that start a job, encrypt them again with another key.

A value is plain text only in the request that sets it, in the answer to an agent, and in memory in between.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from headway.contract.spec import JobSpec
from headway.contract.spec_env import env_problem
from headway.contract.values.redaction import TOKEN
from headway.contract.views.identity import SecretView
from service.domain.shared.errors import InvalidField, NoSecretsKey, NotFound
from service.usecases.ports.secrets import KeyRing, Sealed
from service.usecases.ports.transactions import Transaction, Transactions

_CREDENTIAL_NAME = re.compile(
    r"(^|_)(API_?KEY|ACCESS_?KEY|SECRET|SECRET_?KEY|PASSWORD|PASSWD|TOKEN|CREDENTIALS?|PRIVATE_?KEY)$",
    re.IGNORECASE,
)
_CREDENTIAL_VALUE = re.compile(
    r"^(sk-|ghp_|github_pat_|glpat-|hf_|xox[abp]-|AKIA[0-9A-Z]{16}$|-----BEGIN [A-Z ]*PRIVATE KEY)"
)
_SHORTEST = 8
_MOST_BYTES = 65_536


def required(keys: KeyRing | None) -> KeyRing:
    """Return the keys. Raise NoSecretsKey if the service has none."""
    if keys is None:
        raise NoSecretsKey(
            "this service keeps no secrets, since it has no key for them; its operator sets HEADWAY_SECRETS_KEY "
            "(docs/security.md)."
        )
    return keys


def context_of(project: str, name: str) -> bytes:
    """Return the context that a value is sealed for. A value copied into another row cannot be decrypted."""
    return b"headway secret\0" + project.encode() + b"\0" + name.encode()


async def set_secret(
    transactions: Transactions,
    keys: KeyRing | None,
    project: str,
    name: str,
    value: str,
    *,
    by: str,
    now: datetime,
) -> tuple[SecretView, bool]:
    """Encrypt and store a secret. Return its view, and True if the name is new.

    Raises:
        NoSecretsKey, Unavailable: see `KeyRing`.
        InvalidField: no environment variable can hold the value.
        NotFound: there is no such project.
    """
    if "\0" in value:
        raise InvalidField("value", "it contains a NUL character, which no environment variable can hold")
    if len(value.encode()) > _MOST_BYTES:
        raise InvalidField(
            "value", f"it has more than {_MOST_BYTES:,} bytes, the most of an environment variable"
        )
    sealed = await required(keys).seal(value.encode(), context_of(project, name))
    async with transactions.begin() as tx:
        created = await tx.secrets.put(project, name, sealed, by=by, now=now)
        view = next(one for one in await tx.secrets.of_project(project) if one.name == name)
    return view, created


async def check_environment(tx: Transaction, spec: JobSpec) -> None:
    """Raise InvalidField for an environment that no rank could be started with.

    It is too large, or holds secrets that the job's project does not have.
    """
    wanted = set(spec.secrets.values())
    found = await tx.secrets.get(spec.project, wanted) if wanted else {}
    missing = sorted(wanted - found.keys())
    if missing:
        raise InvalidField(
            "secrets",
            f"project {spec.project} has no secret named {', '.join(missing)}; "
            f"set it: headway secret set {missing[0]} --project {spec.project}",
        )
    sizes = {variable: len(found[name].data) for variable, name in spec.secrets.items()}
    problem = env_problem(spec.env, sizes)
    if problem is not None:
        field, message = problem
        raise InvalidField(field, f"{field}: {message}")


async def sealed_for(
    tx: Transaction, node_id: str, job_id: str, generation: int
) -> tuple[str, dict[str, str], dict[str, Sealed]]:
    """Return the job's project, its secrets' names by environment variable, and the sealed values by secret
    name.

    Raises:
        NotFound: the node holds no slot for that generation, or a secret was removed.
    """
    if (job_id, generation) not in await tx.grants.on_node(node_id):
        raise NotFound(f"this node has no slot for generation {generation} of job {job_id}.")
    spec = (await tx.job_queries.job(job_id)).spec
    wanted = set(spec.secrets.values())
    found = await tx.secrets.get(spec.project, wanted)
    missing = sorted(wanted - found.keys())
    if missing:
        raise NotFound(
            f"project {spec.project} has no secret named {', '.join(missing)} any more; set it again and resubmit: "
            f"headway secret set {missing[0]} --project {spec.project}"
        )
    return spec.project, dict(spec.secrets), found


async def opened(
    keys: KeyRing | None, project: str, names: Mapping[str, str], sealed: Mapping[str, Sealed]
) -> dict[str, str]:
    """Return environment variables and values for the result of `sealed_for`. Raises: as `KeyRing.open`."""
    if not names:
        return {}
    ring = required(keys)
    values = {name: await ring.open(one, context_of(project, name)) for name, one in sealed.items()}
    return {variable: values[name].decode() for variable, name in names.items()}


async def values_in(transactions: Transactions, keys: KeyRing | None, job_id: str) -> list[str]:
    """Return the present values of a job's secrets, to hide them. Removed secrets are left out.

    Raises:
        NoSecretsKey, SecretUnreadable, Unavailable: see `KeyRing`.
    """
    async with transactions.begin() as tx:
        spec = (await tx.job_queries.job(job_id)).spec
        sealed = await tx.secrets.get(spec.project, set(spec.secrets.values())) if spec.secrets else {}
    return list((await opened(keys, spec.project, {name: name for name in sealed}, sealed)).values())


async def rotate(transactions: Transactions, keys: KeyRing) -> int:
    """Encrypt every secret again with the newest key. Return the number of secrets.

    Raises:
        SecretUnreadable, Unavailable: see `KeyRing`. Secrets done before the error stay done, and a
            repetition is harmless.
    """
    async with transactions.begin() as tx:
        names = await tx.secrets.names()
    for project, name in names:
        done = False
        while not done:
            async with transactions.begin() as tx:
                old = (await tx.secrets.get(project, {name})).get(name)
            if old is None:
                break
            context = context_of(project, name)
            new = await keys.seal(await keys.open(old, context), context)
            async with transactions.begin() as tx:
                done = await tx.secrets.replace(project, name, old, new)
    return len(names)


def credentials_in(env: Mapping[str, str]) -> list[str]:
    """Return names of environment variables that probably hold a credential, readable by everyone who sees
    the job.
    """
    return [
        name
        for name, value in env.items()
        if _CREDENTIAL_VALUE.match(value)
        or TOKEN.search(value)
        or (_CREDENTIAL_NAME.search(name) and len(value) >= _SHORTEST and value.lower() != "disabled")
    ]
