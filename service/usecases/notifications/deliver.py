"""Delivery of the messages of webhooks, after the commit of their events, at least once.

A message is claimed in one transaction, sent without one, and settled in another. If the process dies in
between, the claim ends and the message is sent again, with the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import structlog

from service.domain.notifications.messages import body_of
from service.domain.notifications.retries import Answer, judge
from service.domain.notifications.signature import headers_of
from service.domain.shared.errors import HeadwayServiceError
from service.usecases.identity.secrets import required
from service.usecases.notifications.webhooks import context_of
from service.usecases.ports.notifications import Message, WebhookSender
from service.usecases.ports.secrets import KeyRing
from service.usecases.ports.transactions import Transactions

log = structlog.get_logger()

CLAIM: Final = timedelta(seconds=20)
"""Duration of a claim: longer than an attempt may take."""
AT_ONCE: Final = 64
"""Maximum number of messages in flight."""
OF_ONE_WEBHOOK: Final = 4
"""Maximum number of messages in flight to one receiver, so that a slow one delays only its own."""


@dataclass(slots=True, kw_only=True)
class Deliveries:
    """The messages that this process sends now."""

    transactions: Transactions
    sender: WebhookSender
    keys: KeyRing | None
    public_url: str
    now: Callable[[], datetime]
    chance: Callable[[], float]
    """Random numbers from 0 to 1."""
    _sending: dict[asyncio.Task[None], str] = field(default_factory=dict, init=False)
    """The attempts under way, with the ids of their webhooks."""

    async def start(self) -> int:
        """Claim messages that are due, and begin to send them. Return their number.

        Raises:
            Unavailable, Superseded: see `Transactions`.
        """
        room = AT_ONCE - len(self._sending)
        if room <= 0 or self.keys is None:
            return 0
        now = self.now()
        async with self.transactions.begin() as tx:
            claimed = await tx.outbox.claim(
                now, until=now + CLAIM, limit=room, each=OF_ONE_WEBHOOK, sending=list(self._sending.values())
            )
        for message in claimed:
            task = asyncio.create_task(self._attempt(message), name=message.id)
            self._sending[task] = message.webhook.id
            task.add_done_callback(self._sending.pop)
        return len(claimed)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """End the attempts under way with the block. Their messages are due again when their claims end."""
        try:
            yield
        finally:
            sending = list(self._sending)
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    async def settled(self) -> None:
        """Wait for the attempts under way."""
        await asyncio.gather(*self._sending)

    async def _attempt(self, message: Message) -> None:
        """Send a message once, and store the outcome. An error leaves the message to the end of its claim."""
        try:
            answer = await self._send(message)
            now = self.now()
            verdict = judge(
                answer,
                attempts=message.attempts,
                created_at=message.created_at,
                failing_since=message.webhook.failing_since or now,
                now=now,
                chance=self.chance(),
            )
            async with self.transactions.begin() as tx:
                await tx.outbox.settle(message, answer, verdict, now)
        except HeadwayServiceError as error:
            log.warning("delivery_waits", message_id=message.id, reason=error.message)
        except Exception:
            log.exception("delivery_failed", message_id=message.id)
        else:
            if verdict.disable:
                webhook = message.webhook
                log.warning(
                    "webhook_disabled", project=webhook.project, webhook=webhook.name, reason=verdict.disable
                )

    async def _send(self, message: Message) -> Answer:
        webhook, now = message.webhook, self.now()
        ring = required(self.keys)
        try:
            url = (await ring.open(webhook.url, context_of(webhook.id, "url"))).decode()
            context = context_of(webhook.id, "secret")
            secrets = [await ring.open(webhook.secret, context)]
            if (
                webhook.old_secret is not None
                and webhook.old_secret_until is not None
                and now < webhook.old_secret_until
            ):
                secrets.append(await ring.open(webhook.old_secret, context))
        except HeadwayServiceError as error:
            return Answer(None, f"the webhook cannot be decrypted: {error.message}")
        body = body_of(message.topic, message.created_at, message.data, webhook.format, self.public_url)
        headers = {"Content-Type": "application/json", **headers_of(message.id, now, body, secrets)}
        return await self.sender.post(url, headers, body)
