"""Notices of the cloud provider, from the instance metadata service of EC2 or a compatible one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from headway.contract.agents import InterruptionKind
from headway.errors import HeadwayError

EC2_URL = "http://169.254.169.254"
_TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path
_ACTION_PATH = "/latest/meta-data/spot/instance-action"
_REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
_TOKEN_TTL_S = 21_600
_TIMEOUT_S = 2.0


class NoMetadata(HeadwayError):
    """Raised when the metadata service does not answer, or answers in another format. The caller may retry."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Notice of an interruption of this host. `reclaim_at` is None if the provider gives no time."""

    what: InterruptionKind
    action: str
    reclaim_at: datetime | None


class Metadata:
    """Client of one metadata service, with the session tokens of IMDSv2.

    Args:
        url: address of the service. Requests bypass any proxy, because the address belongs to this host.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(base_url=self.url, timeout=_TIMEOUT_S, trust_env=False)
        self._token: str | None = None

    def notices(self) -> list[Notice]:
        """Return the current notices; usually there are none.

        Raises:
            NoMetadata: the service cannot be queried now.
        """
        found = []
        action = self._get(_ACTION_PATH)
        if action is not None:
            word = str(action.get("action", "terminate"))
            found.append(Notice(InterruptionKind.TERMINATE, word, _moment(action.get("time"))))
        if self._get(_REBALANCE_PATH) is not None:
            found.append(Notice(InterruptionKind.REBALANCE, "rebalance", None))
        return found

    def close(self) -> None:
        """Close the connection to the service."""
        self._client.close()

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return the document at `path`, or None if there is none, which is the usual case."""
        response = self._ask(path)
        if response.status_code == 401:  # the session token has expired
            self._token = None
            response = self._ask(path)
        if response.status_code == 404:
            return None
        if response.status_code != 200:
            raise NoMetadata(f"{self.url}{path} answered {response.status_code}.")
        try:
            value = response.json()
        except ValueError as error:
            raise NoMetadata(f"{self.url}{path} did not answer with JSON.") from error
        if not isinstance(value, dict):
            raise NoMetadata(f"{self.url}{path} did not answer with a JSON object.")
        return value

    def _ask(self, path: str) -> httpx.Response:
        if self._token is None:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
            answer = self._send("PUT", _TOKEN_PATH, headers)
            if answer.status_code != 200:
                raise NoMetadata(f"{self.url}{_TOKEN_PATH} answered {answer.status_code}.")
            self._token = answer.text.strip()
        return self._send("GET", path, {"X-aws-ec2-metadata-token": self._token})

    def _send(self, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
        try:
            return self._client.request(method, path, headers=headers)
        except httpx.HTTPError as error:
            raise NoMetadata(f"{self.url} does not answer: {str(error) or type(error).__name__}.") from error


def _moment(text: Any) -> datetime:
    """Return the time in a notice.

    Raises:
        NoMetadata: the text is not a valid time.
    """
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError as error:
        raise NoMetadata(f"{text!r} is not a valid time.") from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
