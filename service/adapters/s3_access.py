"""Access of ranks to one job's checkpoints in an S3 store.

Either the service signs each request with its own keys (presigned URLs), or ranks get short-lived keys from
AWS's Security Token Service or a compatible store.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NoConnection

from headway.contract.credentials import StorageCall, StorageCredentials
from headway.contract.runtime import STORAGE_AWAY
from headway.storage.stores import may_pass
from service.domain.shared.errors import Unavailable
from service.usecases.ports.credentials import StorageKeys, StorageSigner

_OPERATIONS = {
    "get": "get_object",
    "put": "put_object",
    "delete": "delete_object",
    "begin": "create_multipart_upload",
    "part": "upload_part",
    "complete": "complete_multipart_upload",
    "abort": "abort_multipart_upload",
}
VALID_S = 3600
"""Lifetime of keys in seconds. AWS allows no more if the service itself has its keys from a role."""
_MAX_SESSION_NAME = 64


class Presigner(Protocol):
    """The part of boto3's S3 client that signs requests. It makes no network calls."""

    def generate_presigned_url(self, operation: str, *, Params: dict[str, Any], ExpiresIn: int) -> str:  # noqa: N803
        """Return a URL that carries its own signature."""


class Sts(Protocol):
    """The part of boto3's STS client that assumes roles."""

    def assume_role(self, **wanted: Any) -> Mapping[str, Any]:
        """Return temporary keys of a role."""


class _Folders:
    """Base of access to folders of the storage at an `s3://bucket/prefix`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._bucket = parts.netloc
        self._root = f"{parts.path.strip('/')}/".lstrip("/")
        self._url = url.rstrip("/")

    def uri_of(self, prefix: str) -> str:
        return f"{self._url}/{prefix}".rstrip("/")


class S3Signer(_Folders, StorageSigner):
    """Signer of requests of ranks.

    Args:
        url: `s3://bucket/prefix`, the storage of the service.
        client: signs the requests.
    """

    def __init__(self, url: str, client: Presigner) -> None:
        super().__init__(url)
        self._client = client

    async def sign(self, prefix: str, calls: Sequence[StorageCall], valid_s: int) -> list[str]:
        # It runs in a thread, because the keys of a role are renewed from time to time.
        return await asyncio.to_thread(self._sign, f"{self._root}{prefix}", calls, valid_s)

    def _sign(self, prefix: str, calls: Sequence[StorageCall], valid_s: int) -> list[str]:
        try:
            return [self._sign_one(prefix, call, valid_s) for call in calls]
        except BotoCoreError as error:
            raise Unavailable(
                f"the service cannot sign requests to its storage ({type(error).__name__}: {str(error)[:200]}); check its "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or its role"
            ) from error

    def _sign_one(self, prefix: str, call: StorageCall, valid_s: int) -> str:
        params: dict[str, Any] = {"Bucket": self._bucket}
        if call.do == "list":
            params["Prefix"] = prefix
            if call.key is not None:
                params["StartAfter"] = f"{prefix}{call.key}"
            return self._client.generate_presigned_url("list_objects_v2", Params=params, ExpiresIn=valid_s)
        params["Key"] = f"{prefix}{call.key}"
        if call.upload_id is not None:
            params["UploadId"] = call.upload_id
        if call.part is not None:
            params["PartNumber"] = call.part
        return self._client.generate_presigned_url(_OPERATIONS[call.do], Params=params, ExpiresIn=valid_s)


def _status(error: BotoCoreError | ClientError) -> int:
    """Return the HTTP status of the endpoint for keys, which many stores share with their objects; 0 without an answer."""
    if isinstance(error, ClientError):
        return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", HTTPStatus.BAD_REQUEST))
    return 0 if isinstance(error, NoConnection | HTTPClientError) else HTTPStatus.BAD_REQUEST


class StsKeys(_Folders, StorageKeys):
    """Source of keys that assumes a role, limited by a session policy.

    Args:
        url: `s3://bucket/prefix`, the storage of the service.
        role: ARN of a role that may read and write all of it.
    """

    def __init__(
        self, url: str, role: str, client: Sts, *, endpoint_url: str | None, region: str | None
    ) -> None:
        super().__init__(url)
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
            if may_pass(status := _status(error)):
                said = f"status {status or 'none'}, {type(error).__name__}: {str(error)[:200]}"
                raise Unavailable(f"{STORAGE_AWAY} (the request for keys: {said})") from error
            raise Unavailable(
                f"the role for checkpoints cannot be assumed ({type(error).__name__}: {str(error)[:200]}); check "
                "HEADWAY_STORAGE_ROLE and the service's permissions"
            ) from error
        keys = answer["Credentials"]
        return StorageCredentials(
            uri=self.uri_of(prefix),
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
