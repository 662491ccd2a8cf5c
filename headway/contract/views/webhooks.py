"""Webhooks of projects: messages by HTTP about events, and their deliveries."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from headway.contract.spec import NAME_PATTERN

TEST_TOPIC = "webhook.test"
"""Type of the message that a user sends to test a webhook."""


class Topic(StrEnum):
    """Types of the messages that a webhook can choose."""

    JOB_STARTED = "job.started"
    JOB_SUCCEEDED = "job.succeeded"
    JOB_FAILED = "job.failed"
    JOB_CANCELLED = "job.cancelled"
    JOB_EVICTED = "job.evicted"
    """A job gave up all of its slots without its user's request, and waits."""
    JOB_RECOVERING = "job.recovering"
    """A rank or a node failed, and the job recovers."""
    REPLICAS_DIFFER = "job.replicas_differ"
    JOB_BUDGET = "job.budget"
    """A job's own limit, or a budget that it is subject to, reached a threshold."""
    BUDGET_THRESHOLD = "budget.threshold"
    """A budget of the project reached a threshold: one message, regardless of the number of jobs."""


USUAL_TOPICS = tuple(one for one in Topic if one not in {Topic.JOB_STARTED, Topic.JOB_RECOVERING})
"""Topics of a webhook that chooses none."""


class WebhookFormat(StrEnum):
    """Formats of a message's body."""

    STANDARD = "standard"
    """The body of the Standard Webhooks specification: `type`, `timestamp`, `data`."""
    SLACK = "slack"
    """A body for incoming webhooks of Slack and of compatible programs: `text`."""


class DeliveryState(StrEnum):
    """States of the delivery of a message."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"
    """The service has given up."""


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("write an http:// or https:// URL with a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("remove the user and password: the receiver checks the signature instead")
    if parts.fragment:
        raise ValueError("remove the part from # on, which is never sent")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("its port is not a number between 0 and 65535") from None
    if not url.isascii() or any(one.isspace() or ord(one) < 33 for one in url):
        raise ValueError("it contains a character that URLs encode with %")
    return url


WebhookUrl = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_checked_url)]
Topics = Annotated[tuple[Topic, ...], Field(min_length=1, max_length=len(Topic))]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WebhookRequest(_Request):
    """A request for a new webhook of a project."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    url: WebhookUrl
    format: WebhookFormat = WebhookFormat.STANDARD
    topics: Topics = USUAL_TOPICS


class WebhookChange(_Request):
    """A change of a webhook. Fields that are missing stay as they are."""

    url: WebhookUrl | None = None
    format: WebhookFormat | None = None
    topics: Topics | None = None
    enabled: bool | None = None
    """False stops all messages; True sends those that wait, and ends an automatic stop."""


class WebhookView(BaseModel):
    """A webhook without its secret. `address` is the receiver without path and query, which may be secret."""

    project: str
    name: str
    address: str
    format: WebhookFormat
    topics: tuple[Topic, ...]
    enabled: bool
    message: str
    """The reason that it is disabled, or the last failure; empty otherwise."""
    waiting: int
    """Number of messages that are not delivered yet."""
    created_by: str
    created_at: datetime


class WebhookSecret(BaseModel):
    """The secret of a webhook. Only the answer that creates it contains it."""

    webhook: WebhookView
    secret: str
    """`whsec_` and the key in base64, as the Standard Webhooks specification writes it."""


class DeliveryView(BaseModel):
    """The delivery of one message. `id` is the `webhook-id` header, which all attempts have in common."""

    id: str
    topic: str
    state: DeliveryState
    created_at: datetime
    attempts: int
    next_at: datetime | None
    """Time of the next attempt; null when there is none."""
    ended_at: datetime | None
    status: int | None
    """HTTP status of the last answer; null if there was none."""
    answer: str
    """The beginning of the last answer, or the reason that there was none."""
