"""Definition of webhooks: create, change, rotate the secret, test and delete them.

URL and secret are plain text only in a request or its answer, and in memory while a message is sent.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from headway.contract.views.webhooks import (
    TEST_TOPIC,
    DeliveryView,
    WebhookChange,
    WebhookRequest,
    WebhookSecret,
    WebhookView,
)
from service.domain.notifications.signature import written
from service.domain.shared.errors import ChangedMeanwhile, IllegalTransition, NameTaken
from service.usecases.identity.secrets import required
from service.usecases.ports.notifications import Webhook
from service.usecases.ports.secrets import KeyRing
from service.usecases.ports.transactions import Transaction, Transactions

OLD_SECRET_SIGNS_FOR: Final = timedelta(hours=24)
"""Time for which messages are signed with the previous secret too, after a rotation."""
DELIVERIES_SHOWN: Final = 100


def context_of(webhook_id: str, part: str) -> bytes:
    """Return the context that a part of a webhook is sealed for. It cannot be decrypted in another row."""
    return b"headway webhook\0" + webhook_id.encode() + b"\0" + part.encode()


async def create_webhook(
    transactions: Transactions,
    keys: KeyRing | None,
    project: str,
    wanted: WebhookRequest,
    *,
    webhook_id: str,
    secret: bytes,
    by: str,
    now: datetime,
) -> WebhookSecret:
    """Store a new webhook and return it with its secret, which is never shown again.

    Raises:
        NoSecretsKey, Unavailable: see `KeyRing`.
        NotFound: there is no such project.
        NameTaken: the project has a webhook of that name.
    """
    ring = required(keys)
    webhook = Webhook(
        id=webhook_id,
        project=project,
        name=wanted.name,
        address=_address(wanted.url),
        url=await ring.seal(wanted.url.encode(), context_of(webhook_id, "url")),
        format=wanted.format,
        topics=wanted.topics,
        secret=await ring.seal(secret, context_of(webhook_id, "secret")),
        created_by=by,
        created_at=now,
    )
    async with transactions.begin() as tx:
        if not await tx.webhooks.add(webhook):
            raise NameTaken(
                f"project {project} has a webhook named {wanted.name} already; choose another name, or change it: "
                f"headway webhook set {wanted.name} --project {project}"
            )
        return WebhookSecret(webhook=await _view(tx, project, wanted.name), secret=written(secret))


async def change_webhook(
    transactions: Transactions,
    keys: KeyRing | None,
    project: str,
    name: str,
    change: WebhookChange,
    now: datetime,
) -> WebhookView:
    """Change a webhook. Enabling it sends the messages that wait.

    Raises:
        NoSecretsKey, Unavailable: see `KeyRing`.
        NotFound: the project has no such webhook.
        ChangedMeanwhile: it was replaced by another one of that name meanwhile.
    """
    async with transactions.begin() as tx:
        before = await tx.webhooks.lock(project, name)
    sealed = (
        None
        if change.url is None
        else await required(keys).seal(change.url.encode(), context_of(before.id, "url"))
    )
    async with transactions.begin() as tx:
        webhook = await _same(tx, before)
        if change.url is not None and sealed is not None:
            webhook = replace(webhook, url=sealed, address=_address(change.url))
        webhook = replace(
            webhook, format=change.format or webhook.format, topics=change.topics or webhook.topics
        )
        if change.enabled is False and webhook.disabled_at is None:
            webhook = replace(webhook, disabled_at=now, message="a user disabled it")
        if change.enabled and webhook.disabled_at is not None:
            webhook = replace(webhook, disabled_at=None, message="", failing_since=None)
            await tx.outbox.make_due(webhook.id, now)
        await tx.webhooks.save(webhook)
        return await _view(tx, project, name)


async def rotate_secret(
    transactions: Transactions,
    keys: KeyRing | None,
    project: str,
    name: str,
    *,
    secret: bytes,
    now: datetime,
) -> WebhookSecret:
    """Replace the secret of a webhook and return the new one. The previous one signs for a day, too.

    Raises:
        NoSecretsKey, Unavailable: see `KeyRing`.
        NotFound: the project has no such webhook.
        ChangedMeanwhile: it was replaced by another one of that name meanwhile.
    """
    async with transactions.begin() as tx:
        before = await tx.webhooks.lock(project, name)
    sealed = await required(keys).seal(secret, context_of(before.id, "secret"))
    async with transactions.begin() as tx:
        webhook = await _same(tx, before)
        rotated = replace(
            webhook, secret=sealed, old_secret=webhook.secret, old_secret_until=now + OLD_SECRET_SIGNS_FOR
        )
        await tx.webhooks.save(rotated)
        return WebhookSecret(webhook=await _view(tx, project, name), secret=written(secret))


async def test_webhook(tx: Transaction, project: str, name: str, *, by: str, now: datetime) -> DeliveryView:
    """Add a test message for a webhook, and return its delivery.

    Raises:
        NotFound: the project has no such webhook.
        IllegalTransition: the webhook is disabled.
    """
    webhook = await tx.webhooks.lock(project, name)
    if webhook.disabled_at is not None:
        raise IllegalTransition(
            f"webhook {name} is disabled ({webhook.message}); enable it first: "
            f"headway webhook enable {name} --project {project}"
        )
    data = {"project": project, "webhook": name, "message": f"{by} tests the webhook {name} of Headway."}
    message_id = await tx.outbox.add_to(webhook, TEST_TOPIC, data, now)
    found = await tx.outbox.of_webhook(project, name, DELIVERIES_SHOWN)
    return next(one for one in found if one.id == message_id)


async def reseal_webhooks(transactions: Transactions, keys: KeyRing) -> int:
    """Encrypt URL and secrets of every webhook again with the newest key. Return the number of webhooks.

    Raises:
        SecretUnreadable, Unavailable: see `KeyRing`. Webhooks done before the error stay done.
    """
    async with transactions.begin() as tx:
        named = await tx.webhooks.named()
    for project, name in named:
        done = False
        while not done:
            async with transactions.begin() as tx:
                old = await tx.webhooks.lock(project, name)
            sealed: dict[str, Any] = {}
            for part, value in (("url", old.url), ("secret", old.secret), ("old_secret", old.old_secret)):
                if value is not None:
                    context = context_of(old.id, part.removeprefix("old_"))
                    sealed[part] = await keys.seal(await keys.open(value, context), context)
            async with transactions.begin() as tx:
                present = await tx.webhooks.lock(project, name)
                done = (present.url, present.secret) == (old.url, old.secret)
                if done:
                    await tx.webhooks.save(replace(present, **sealed))
    return len(named)


async def _same(tx: Transaction, before: Webhook) -> Webhook:
    webhook = await tx.webhooks.lock(before.project, before.name)
    if webhook.id != before.id:
        raise ChangedMeanwhile(
            f"webhook {before.name} was replaced meanwhile; look at it and repeat your change."
        )
    return webhook


async def _view(tx: Transaction, project: str, name: str) -> WebhookView:
    return next(one for one in await tx.webhooks.of_project(project) if one.name == name)


def _address(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
