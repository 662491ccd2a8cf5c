"""The service as the agent sees it: a few calls over HTTP."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from pathlib import Path
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from headway._http import retry_after_s
from headway._tls import trusted_by
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
from headway.errors import HeadwayError

_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
_BACKOFF_FIRST_S = 0.2
_BACKOFF_MAX_S = 10.0
_JOIN_HINTS = {
    401: "Check --token: it must be a join token, not one of a user.",
    409: "Give this agent another --name, or stop the agent that has it.",
    422: "Agent and service may be of different versions.",
}
_NOT_FOUND = 404
_UNKNOWN_AGENT = frozenset({401, _NOT_FOUND})


Reply = TypeVar("Reply", bound=BaseModel)


class Unreachable(HeadwayError):
    """The service did not answer, or asked to be left alone for a while: for `retry_after_s`, if it said so. Try again.
    `is_busy`: it works, and has no time for this now.
    """

    def __init__(
        self, problem: str, hint: str = "", *, retry_after_s: float = 0.0, is_busy: bool = False
    ) -> None:
        self.retry_after_s = retry_after_s
        self.is_busy = is_busy
        super().__init__(problem, hint)


class NotJoined(HeadwayError):
    """The service does not know this node or its token (any more). Join again."""


class Refused(HeadwayError):
    """The service said no, and would say it again."""

    def __init__(self, status: int, problem: str, hint: str = "") -> None:
        self.status = status
        super().__init__(problem, hint)


class Membership:
    """The agent's current join reply, shared by its threads."""

    def __init__(self) -> None:
        self._reply: JoinReply | None = None
        self._joined = threading.Event()

    def current(self) -> JoinReply | None:
        """The latest reply; None before the first."""
        return self._reply

    def wait(self, timeout_s: float) -> JoinReply | None:
        """The latest reply, waiting for the first one for so long."""
        self._joined.wait(timeout_s)
        return self._reply

    def update(self, reply: JoinReply) -> None:
        """Take a new reply."""
        self._reply = reply
        self._joined.set()

    def leave(self) -> None:
        """The reply is void: the service does not know this node any more."""
        self._joined.clear()
        self._reply = None


class ServiceApi:
    """Calls to one service. Safe to share between threads.

    Args:
        url: base URL of the service.
        membership: where the node's own token is found.
    """

    def __init__(self, url: str, membership: Membership) -> None:
        self.url = url.rstrip("/")
        self._membership = membership
        self._client = httpx.Client(
            base_url=f"{self.url}/api/v1", timeout=_TIMEOUT, verify=trusted_by(os.environ)
        )

    def join(self, request: JoinRequest, token: str) -> JoinReply:
        """Offer this host's slots, with a join token or the node's own.

        Raises:
            Unreachable: try again.
            Refused: the token is wrong or the name is taken.
        """
        response = self._send("POST", "/agents", token, request.model_dump_json().encode())
        if response.status_code >= 300:
            problem = (
                f"The service at {self.url} refused this agent ({response.status_code}): {_detail(response)}"
            )
            raise Refused(
                response.status_code, problem, _JOIN_HINTS.get(response.status_code, "Check --url.")
            )
        return self._parse(JoinReply, response)

    def report(self, request: ReportRequest) -> ReportReply:
        """Send news and renew the lease.

        Raises:
            Unreachable, NotJoined, Refused: see there.
        """
        node = self._node()
        path = f"/agents/{node.node_id}/reports"
        response = self._send("POST", path, node.node_token, request.model_dump_json().encode())
        return self._parse(ReportReply, self._own(response, node))

    def renew_credentials(self) -> NodeCredentials:
        """New credentials. Those of before work until the new ones are used.

        Raises:
            Unreachable, NotJoined, Refused: see there.
        """
        node = self._node()
        response = self._send("POST", f"/agents/{node.node_id}/credentials", node.node_token, b"")
        return self._parse(NodeCredentials, self._own(response, node))

    def storage_access(self, job_id: str, generation: int) -> StorageAccess:
        """Keys for the checkpoints of a job of which this node holds that generation.

        Raises:
            Unreachable, NotJoined, Refused: see there. Refused: there is no use in asking again.
        """
        node = self._node()
        if node.renew_credentials_s is None:
            return StorageAccess()  # a service of an earlier version gives no keys
        wanted = StorageRequest(job_id=job_id, generation=generation)
        path = f"/agents/{node.node_id}/storage"
        response = self._send("POST", path, node.node_token, wanted.model_dump_json().encode())
        return self._parse(StorageAccess, self._about_job(response, node))

    def secrets(self, job_id: str, generation: int) -> dict[str, str]:
        """The secrets of a job of which this node holds that generation, by the names that ranks find them under.

        Raises:
            Unreachable, NotJoined, Refused: see there. Refused: there is no use in asking again.
        """
        node = self._node()
        wanted = SecretsRequest(job_id=job_id, generation=generation)
        path = f"/agents/{node.node_id}/secrets"
        response = self._send("POST", path, node.node_token, wanted.model_dump_json().encode())
        reply = self._parse(SecretsReply, self._about_job(response, node))
        return {name: value.get_secret_value() for name, value in reply.env.items()}

    def ship_log(self, job_id: str, generation: int, rank: int, offset: int, data: bytes) -> bool:
        """Store a piece of a rank's output; whether somebody waits for the next ones. Repeating it is harmless.

        Raises:
            Unreachable, NotJoined, Refused: see there.
        """
        node = self._node()
        path = f"/agents/{node.node_id}/logs/{job_id}/{generation}/{rank}?offset={offset}"
        response = self._send("POST", path, node.node_token, data, "application/octet-stream")
        return FOLLOWED_HEADER in self._about_job(response, node).headers

    def download_bundle(self, digest: str, target: Path) -> None:
        """Write the bundle to `target`, checked against its digest.

        Raises:
            Unreachable, NotJoined, Refused: see there. Unreachable also for damaged bytes.
        """
        node = self._node()
        sha256 = hashlib.sha256()
        headers = {"Authorization": f"Bearer {node.node_token}"}
        try:
            with self._client.stream("GET", f"/bundles/{digest}", headers=headers) as response:
                if response.status_code != 200:
                    response.read()
                    self._about_job(_available(response), node)
                with target.open("wb") as file:
                    for piece in response.iter_raw():
                        sha256.update(piece)
                        file.write(piece)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if f"sha256:{sha256.hexdigest()}" != digest:
            raise Unreachable(f"The bundle {digest} arrived damaged.")

    def _node(self) -> JoinReply:
        node = self._membership.current()
        if node is None:
            raise NotJoined("This agent has not joined yet.")
        return node

    def _about_job(self, response: httpx.Response, node: JoinReply) -> httpx.Response:
        """A 404 is about the job here: one that was deleted needs no logs."""
        return _permanent(response) if response.status_code == _NOT_FOUND else self._own(response, node)

    def _own(self, response: httpx.Response, node: JoinReply) -> httpx.Response:
        """The answer to what was sent as `node`: one that is refused for its token may have been overtaken by a new one."""
        if response.status_code in _UNKNOWN_AGENT:
            problem = f"The service does not know this node: {_detail(response)}"
            if self._membership.current() is not node:
                raise Unreachable(problem)
            raise NotJoined(problem)
        return _permanent(response)

    def _send(
        self, method: str, path: str, token: str, body: bytes, kind: str = "application/json"
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        try:
            return _available(self._client.request(method, path, content=body, headers=headers))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _parse(self, kind: type[Reply], response: httpx.Response) -> Reply:
        try:
            return kind.model_validate_json(response.content)
        except ValidationError as error:
            raise Unreachable(f"{self.url} does not answer like a Headway service: {_told(error)}") from None

    def _unreachable(self, error: httpx.HTTPError) -> Unreachable:
        detail = str(error) or type(error).__name__
        return Unreachable(f"The service at {self.url} cannot be reached: {detail}.")


class Backoff:
    """Growing, jittered waits between attempts, so that agents do not return all at once."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures = 0

    def reset(self) -> None:
        """It worked."""
        self._failures = 0

    def next_s(self, asked_s: float = 0.0) -> float:
        """How long to wait after one more failure; at least what the service has asked for."""
        ceiling = min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        return max(ceiling * self._rng.uniform(0.5, 1.0), asked_s * self._rng.uniform(1.0, 1.5))

    def after_s(self, error: Unreachable) -> float:
        """How long to wait after this one. A busy service asks for more when it sends more away, so that nothing is added to
        what it asks for: news that were sent away twice would come back after many seconds else.
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


def _told(error: ValidationError) -> str:
    """What is wrong with an answer, without what was in it: that may be a credential."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False)
    )


def _detail(response: httpx.Response) -> str:
    try:
        body = response.json()
        return str(body["detail"])
    except (ValueError, KeyError, TypeError):
        return response.text[:500] or f"status {response.status_code}"
