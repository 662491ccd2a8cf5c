"""Client of the service's HTTP API for agents."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from headway.contract.agents import (
    FOLLOWED_HEADER,
    JoinReply,
    JoinRequest,
    ReportReply,
    ReportRequest,
)
from headway.contract.credentials import (
    NodeCredentials,
    SecretsReply,
    SecretsRequest,
    StorageAccess,
    StorageRequest,
)
from headway.contract.executions import ExecutionReply, ExecutionReport
from headway.errors import HeadwayError
from headway.http import retry_after_s
from headway.proxies import naming, proxy_for, proxy_hint
from headway.tls import certificate_hint, trusted_by

_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
_BACKOFF_FIRST_S = 0.2
_BACKOFF_MAX_S = 10.0
_JOIN_HINTS = {
    401: "Check --token: it must be a join token, not a user's token.",
    409: "Give this agent another --name, or stop the agent that uses this name.",
    422: "Agent and service may be of different versions.",
}
_NOT_FOUND = 404
_UNKNOWN_AGENT = frozenset({401, _NOT_FOUND})


Reply = TypeVar("Reply", bound=BaseModel)


class Unreachable(HeadwayError):
    """Raised when the service did not answer, or asked to retry later, after `retry_after_s` seconds if given.

    `is_busy` means that the service works but limits its load. The caller may retry.
    """

    def __init__(
        self, problem: str, hint: str = "", *, retry_after_s: float = 0.0, is_busy: bool = False
    ) -> None:
        self.retry_after_s = retry_after_s
        self.is_busy = is_busy
        super().__init__(problem, hint)


class NotJoined(HeadwayError):
    """Raised when the service does not know this node or its token. The agent has to join again."""


class Refused(HeadwayError):
    """Raised when the service rejected the request, and a retry would fail too."""

    def __init__(self, status: int, problem: str, hint: str = "") -> None:
        self.status = status
        super().__init__(problem, hint)


class Membership:
    """The agent's current join reply, shared by its threads."""

    def __init__(self) -> None:
        self._reply: JoinReply | None = None
        self._joined = threading.Event()

    def current(self) -> JoinReply | None:
        """Return the latest reply, or None before the first join."""
        return self._reply

    def wait(self, timeout_s: float) -> JoinReply | None:
        """Return the latest reply, after waiting at most `timeout_s` for the first one."""
        self._joined.wait(timeout_s)
        return self._reply

    def update(self, reply: JoinReply) -> None:
        """Replace the current reply with a new one."""
        self._reply = reply
        self._joined.set()

    def leave(self) -> None:
        """Discard the reply, because the service does not know this node any more."""
        self._joined.clear()
        self._reply = None


class ServiceApi:
    """Client of one service. Thread-safe.

    Every method raises Unreachable, NotJoined or Refused, as their classes describe.

    Args:
        url: base URL of the service.
        membership: source of the node's own token.
    """

    def __init__(self, url: str, membership: Membership) -> None:
        self.url = url.rstrip("/")
        self._membership = membership
        self.clock_ahead_s: float | None = None
        """Lead of this host's clock over the service's, to about 0.5 s; None before the first answer."""
        self._proxy = proxy_for(self.url, os.environ)
        with naming(self._proxy, self.url):
            self._client = httpx.Client(
                base_url=f"{self.url}/api/v1",
                timeout=_TIMEOUT,
                verify=trusted_by(os.environ),
                proxy=self._proxy.address if self._proxy else None,
                trust_env=False,
            )

    def join(self, request: JoinRequest, token: str) -> JoinReply:
        """Offer this host's slots, with a join token or the node's own.

        Raises:
            Unreachable: the caller should retry.
            Refused: the token is wrong or the name is taken.
        """
        response = self._send("/agents", token, request)
        status = response.status_code
        if status >= 300:
            problem = f"The service at {self.url} refused this agent ({status}): {_detail(response)}"
            raise Refused(status, problem, _JOIN_HINTS.get(status, "Check --url."))
        return self._parse(JoinReply, response)

    def report(self, request: ReportRequest) -> ReportReply:
        """Send a report, and renew the lease."""
        return self._parse(ReportReply, self._post("reports", request))

    def renew_credentials(self) -> NodeCredentials:
        """Return new credentials. The old ones stay valid until the new ones are used."""
        return self._parse(NodeCredentials, self._post("credentials", b""))

    def storage_access(self, job_id: str, generation: int) -> StorageAccess:
        """Return keys for the checkpoints of a job. This node must hold the given generation."""
        request = StorageRequest(job_id=job_id, generation=generation)
        return self._parse(StorageAccess, self._post("storage", request, about_job=True))

    def secrets(self, job_id: str, generation: int) -> dict[str, str]:
        """Return the secrets of a job by variable name. This node must hold the given generation."""
        request = SecretsRequest(job_id=job_id, generation=generation)
        reply = self._parse(SecretsReply, self._post("secrets", request, about_job=True))
        return {name: value.get_secret_value() for name, value in reply.env.items()}

    def ship_log(
        self, job_id: str, generation: int, rank: int, offset: int, data: bytes, *, present_rank: int
    ) -> bool:
        """Store a piece of a rank's output, and return True if a client follows the output. Idempotent."""
        path = f"logs/{job_id}/{generation}/{rank}?offset={offset}"
        if present_rank != rank:
            path += f"&present_rank={present_rank}"
        return FOLLOWED_HEADER in self._post(path, data, about_job=True).headers

    def report_execution(self, execution: str, report: ExecutionReport) -> ExecutionReply:
        """Send a report about a command beside a rank. A service that has no such command any more refuses it."""
        return self._parse(ExecutionReply, self._post(f"executions/{execution}", report, about_job=True))

    def download_bundle(self, digest: str, target: Path) -> None:
        """Write the bundle to `target`, and verify its digest. A wrong digest raises Unreachable."""
        node = self._node()
        sha256 = hashlib.sha256()
        headers = {"Authorization": f"Bearer {node.node_token}"}
        try:
            with self._client.stream("GET", f"/bundles/{digest}", headers=headers) as response:
                if response.status_code != 200:
                    response.read()
                    self._checked_about_job(_available(response), node)
                with target.open("wb") as file:
                    for piece in response.iter_raw():
                        sha256.update(piece)
                        file.write(piece)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if f"sha256:{sha256.hexdigest()}" != digest:
            raise Unreachable(f"The bundle {digest} arrived damaged: it does not match its digest.")

    def _node(self) -> JoinReply:
        node = self._membership.current()
        if node is None:
            raise NotJoined("This agent has not joined yet.")
        return node

    def _checked_about_job(self, response: httpx.Response, node: JoinReply) -> httpx.Response:
        """Return the response, or raise Refused if it is 404, which means that the job was deleted."""
        return _permanent(response) if response.status_code == _NOT_FOUND else self._checked(response, node)

    def _checked(self, response: httpx.Response, node: JoinReply) -> httpx.Response:
        """Return the response to a request of `node`.

        If its token is rejected, but another thread has replaced the token meanwhile, raise Unreachable, so
        that the caller retries.
        """
        if response.status_code in _UNKNOWN_AGENT:
            problem = f"The service does not know this node: {_detail(response)}"
            if self._membership.current() is not node:
                raise Unreachable(problem)
            raise NotJoined(problem)
        return _permanent(response)

    def _post(self, path: str, body: BaseModel | bytes, *, about_job: bool = False) -> httpx.Response:
        """Send a request of this node to a path below its own, and return the response unless it is an error."""
        node = self._node()
        response = self._send(f"/agents/{node.node_id}/{path}", node.node_token, body)
        return self._checked_about_job(response, node) if about_job else self._checked(response, node)

    def _send(self, path: str, token: str, body: BaseModel | bytes) -> httpx.Response:
        if isinstance(body, BaseModel):
            kind, content = "application/json", body.model_dump_json().encode()
        else:
            kind, content = "application/octet-stream", body
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        try:
            response = self._client.post(path, content=content, headers=headers)
            if date := response.headers.get("Date"):
                # The header has whole seconds, rounded down.
                self.clock_ahead_s = time.time() - parsedate_to_datetime(date).timestamp() - 0.5
            return _available(response)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _parse(self, kind: type[Reply], response: httpx.Response) -> Reply:
        try:
            return kind.model_validate_json(response.content)
        except ValidationError as error:
            raise Unreachable(
                f"{self.url} does not answer like a Headway service: {_problems(error)}"
            ) from None

    def _unreachable(self, error: httpx.HTTPError) -> Unreachable:
        detail = str(error) or type(error).__name__
        hint = certificate_hint(error) or (proxy_hint(self._proxy, self.url) if self._proxy else "")
        return Unreachable(f"The service at {self.url} cannot be reached: {detail}.", hint)


class Backoff:
    """Exponential backoff with jitter, so that agents do not all retry at the same time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures = 0

    def reset(self) -> None:
        """Start again with the shortest wait, after a success."""
        self._failures = 0

    def next_s(self, asked_s: float = 0.0) -> float:
        """Return the seconds to wait after another failure, at least the `asked_s` that the service requested."""
        ceiling = min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        return max(ceiling * self._rng.uniform(0.5, 1.0), asked_s * self._rng.uniform(1.0, 1.5))

    def after_s(self, error: Unreachable) -> float:
        """Return the seconds to wait after this error.

        A busy service requests a longer wait the more requests it rejects. So its value is used without the
        exponential backoff: otherwise a request that was rejected twice would be delayed by many seconds.
        """
        if error.is_busy and error.retry_after_s:
            return error.retry_after_s * self._rng.uniform(1.0, 1.5)
        return self.next_s(error.retry_after_s)


def _available(response: httpx.Response) -> httpx.Response:
    if response.status_code == 429 or response.status_code >= 500:
        raise Unreachable(
            f"The service answered {response.status_code}: {_detail(response)}",
            retry_after_s=min(retry_after_s(response.headers) or 0.0, _BACKOFF_MAX_S),
            is_busy=response.status_code == 429,
        )
    return response


def _permanent(response: httpx.Response) -> httpx.Response:
    if response.status_code >= 300:
        raise Refused(response.status_code, _detail(response))
    return response


def _problems(error: ValidationError) -> str:
    """Return the problems with an answer, but none of its values, because they may be credentials."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False)
    )


def _detail(response: httpx.Response) -> str:
    try:
        body = response.json()
        return str(body["detail"])
    except (ValueError, KeyError, TypeError):
        return response.text[:500] or f"status {response.status_code}"
