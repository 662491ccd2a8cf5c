"""Bodies of messages. All attempts to deliver a message have the same body."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from headway.contract.views.webhooks import TEST_TOPIC, WebhookFormat


def body_of(
    topic: str, created_at: datetime, data: Mapping[str, Any], form: WebhookFormat, public_url: str
) -> bytes:
    """Return the body of a message.

    Args:
        topic: type of the message.
        created_at: time of the event.
        data: facts about the event, as stored with it.
        form: format of the webhook.
        public_url: address of the service, for links to jobs.
    """
    link = f"{public_url}/jobs/{data['id']}" if "state" in data else None
    if form is WebhookFormat.SLACK:
        return json.dumps({"text": _slack_text(topic, data, link)}).encode()
    described = {**data, **({"url": link} if link else {})}
    return json.dumps(
        {"type": topic, "timestamp": created_at.isoformat(), "data": described}, sort_keys=True
    ).encode()


def _slack_text(topic: str, data: Mapping[str, Any], link: str | None) -> str:
    project, message = _escaped(str(data["project"])), _escaped(str(data["message"]))
    if topic == TEST_TOPIC or link is None:
        return f"[{project}] {message}"
    return f"[{project}] <{link}|{_escaped(str(data['name']))}> is {data['state']} ({topic}): {message}"


def _escaped(text: str) -> str:
    """Return text with the three characters escaped that Slack gives a meaning."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
