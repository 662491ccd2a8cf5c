"""Signed requests to an S3 store (presigned URLs), with the service's own keys."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError

from headway.contract.credentials import StorageCall
from service.domain.shared.errors import Unavailable
from service.usecases.ports.credentials import StorageSigner

_OPERATIONS = {
    "get": "get_object",
    "put": "put_object",
    "delete": "delete_object",
    "begin": "create_multipart_upload",
    "part": "upload_part",
    "complete": "complete_multipart_upload",
    "abort": "abort_multipart_upload",
}


class Presigner(Protocol):
    """The part of boto3's S3 client that signs requests. It makes no network calls."""

    def generate_presigned_url(self, operation: str, *, Params: dict[str, Any], ExpiresIn: int) -> str:  # noqa: N803
        """Return a URL that carries its own signature."""


class S3Signer(StorageSigner):
    """Signer of requests of ranks.

    Args:
        url: `s3://bucket/prefix`, the storage of the service.
        client: signs the requests.
    """

    def __init__(self, url: str, client: Presigner) -> None:
        parts = urlsplit(url)
        self._bucket = parts.netloc
        self._root = f"{parts.path.strip('/')}/".lstrip("/")
        self._url = url.rstrip("/")
        self._client = client

    def uri_of(self, prefix: str) -> str:
        return f"{self._url}/{prefix}".rstrip("/")

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
