"""Interfaces of webhooks: their rows, the outbox of their messages, and the way out of the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from headway.contract.views.webhooks import DeliveryView, Topic, WebhookFormat, WebhookView
from service.domain.notifications.retries import Answer, Verdict
from service.usecases.ports.secrets import Sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A webhook as stored. Its URL and its secrets are sealed."""

    id: str
    project: str
    name: str
    address: str
    url: Sealed
    format: WebhookFormat
    topics: tuple[Topic, ...]
    secret: Sealed
    old_secret: Sealed | None = None
    """The secret before the latest rotation, which also signs until `old_secret_until`."""
    old_secret_until: datetime | None = None
    disabled_at: datetime | None = None
    message: str = ""
    failing_since: datetime | None = None
    """First failure after the latest success; None without a failure."""
    created_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message that this process has claimed for one attempt."""

    id: str
    webhook: Webhook
    topic: str
    data: Mapping[str, Any]
    created_at: datetime
    attempts: int
    """Number of attempts, this one included."""


class Webhooks(Protocol):
    """Webhooks by project and name."""

    async def add(self, webhook: Webhook) -> bool:
        """Store a webhook. Return False if its project has one of that name.

        Raises:
            NotFound: there is no such project.
        """

    async def lock(self, project: str, name: str) -> Webhook:
        """Return a webhook and lock its row. Raise NotFound."""

    async def save(self, webhook: Webhook) -> None:
        """Store the new values of a webhook whose row is locked."""

    async def delete(self, webhook_id: str) -> None:
        """Remove a webhook with its messages."""

    async def of_project(self, project: str) -> list[WebhookView]:
        """Return the webhooks of a project, by name."""

    async def named(self) -> list[tuple[str, str]]:
        """Return the project and name of each webhook."""


class Outbox(Protocol):
    """Messages of webhooks. Messages about events are added by the statement that stores the event."""

    async def add(self, project: str, topic: str, data: Mapping[str, Any], now: datetime) -> None:
        """Add a message for each enabled webhook of the project that has chosen the topic."""

    async def add_to(self, webhook: Webhook, topic: str, data: Mapping[str, Any], now: datetime) -> str:
        """Add a message for one webhook, and return the message's id."""

    async def claim(
        self, now: datetime, *, until: datetime, limit: int, each: int, sending: Sequence[str]
    ) -> list[Message]:
        """Claim messages that are due, and count the attempt.

        Nobody else gets a claimed message before `until`; then it is due again, as after the death of its
        sender.

        Args:
            now: the present time.
            until: end of the claims.
            limit: maximum number of messages.
            each: maximum number of messages of one webhook, with those that are being sent.
            sending: ids of the webhooks of the messages that are being sent, once for each message.
        """

    async def settle(self, message: Message, answer: Answer, verdict: Verdict, now: datetime) -> None:
        """Store the outcome of an attempt, unless the message has ended meanwhile."""

    async def make_due(self, webhook_id: str, now: datetime) -> None:
        """Make all waiting messages of a webhook due."""

    async def of_webhook(self, project: str, name: str, limit: int) -> list[DeliveryView]:
        """Return the deliveries of a webhook, newest first. Raise NotFound."""


class WebhookSender(Protocol):
    """The way out of the service."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a request, once, and return its answer, or the reason that there was none. Never raises."""
