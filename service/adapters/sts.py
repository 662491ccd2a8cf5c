"""Keys for the checkpoints of one job, from AWS's Security Token Service or a store that speaks like it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from headway.contract.credentials import StorageCredentials
from service.domain.errors import Unavailable

VALID_S = 3600
"""The longest that a role may be taken on by who has one already, such as a service on an instance with a role."""
_MAX_SESSION_NAME = 64


class Sts(Protocol):
    """What is used of boto3's client."""

    def assume_role(self, **wanted: Any) -> Mapping[str, Any]:
        """Take on a role."""
        ...


class StsKeys:
    """Implements `usecases.node_ports.StorageKeys`: the role that the service may take on, narrowed down by a session policy.

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
        """Keys for what lies under the prefix."""
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
                f"the role for checkpoints cannot be taken on ({type(error).__name__}: {str(error)[:200]}); look at "
                "HEADWAY_STORAGE_ROLE and the service's rights"
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
    """What a bearer may do: with the objects under `prefix` (it ends in `/`) everything that checkpoints need, else nothing."""
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
