"""Keys for the checkpoints of one job, from AWS's Security Token Service or a compatible store."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from headway.contract.credentials import StorageCredentials
from service.domain.shared.errors import Unavailable
from service.usecases.ports.credentials import StorageKeys

VALID_S = 3600
"""Lifetime of keys in seconds. AWS allows no more if the service itself has its keys from a role."""
_MAX_SESSION_NAME = 64


class Sts(Protocol):
    """The part of boto3's STS client that assumes roles."""

    def assume_role(self, **wanted: Any) -> Mapping[str, Any]:
        """Return temporary keys of a role."""


class StsKeys(StorageKeys):
    """Source of keys that assumes a role, limited by a session policy.

    Args:
        url: `s3://bucket/prefix`, the storage of the service.
        role: ARN of a role that may read and write all of it.
    """

    def __init__(
        self, url: str, role: str, client: Sts, *, endpoint_url: str | None, region: str | None
    ) -> None:
        parts = urlsplit(url)
        self._bucket = parts.netloc
        self._root = f"{parts.path.strip('/')}/".lstrip("/")
        self._url = url.rstrip("/")
        self._role = role
        self._client = client
        self._endpoint_url = endpoint_url
        self._region = region

    async def keys_for(self, prefix: str, session: str) -> StorageCredentials:
        policy = session_policy(self._bucket, f"{self._root}{prefix}")
        wanted = {
            "RoleArn": self._role,
            "RoleSessionName": re.sub(r"[^\w+=,.@-]", "-", session)[:_MAX_SESSION_NAME],
            "Policy": json.dumps(policy, separators=(",", ":")),
            "DurationSeconds": VALID_S,
        }
        try:
            answer = await asyncio.to_thread(lambda: self._client.assume_role(**wanted))
        except (BotoCoreError, ClientError) as error:
            raise Unavailable(
                f"the role for checkpoints cannot be assumed ({type(error).__name__}: {str(error)[:200]}); check "
                "HEADWAY_STORAGE_ROLE and the service's permissions"
            ) from error
        keys = answer["Credentials"]
        return StorageCredentials(
            uri=f"{self._url}/{prefix}".rstrip("/"),
            endpoint_url=self._endpoint_url,
            region=self._region,
            access_key_id=keys["AccessKeyId"],
            secret_access_key=keys["SecretAccessKey"],
            session_token=keys["SessionToken"],
            expires_at=keys["Expiration"],
        )


def session_policy(bucket: str, prefix: str) -> dict[str, Any]:
    """Return a policy that allows what checkpoints need under `prefix` (it ends in `/`), and nothing else."""
    objects = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": objects, "Resource": f"arn:aws:s3:::{bucket}/{prefix}*"},
            {
                "Effect": "Allow",
                "Action": "s3:ListBucket",
                "Resource": f"arn:aws:s3:::{bucket}",
                "Condition": {"StringLike": {"s3:prefix": f"{prefix}*"}},
            },
        ],
    }
