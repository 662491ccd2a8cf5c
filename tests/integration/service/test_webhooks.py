"""Webhooks of the running service, with a real receiver on a port of this machine."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from service.adapters.keyring import EnvKeyRing
from service.domain.notifications.retries import TRIED_FOR
from service.http_settings import HttpSettings
from service.settings import SecretSettings
from service.usecases.jobs.events import record
from service.usecases.notifications.deliver import CLAIM, OF_ONE_WEBHOOK
from service.usecases.notifications.webhooks import reseal_webhooks
from tests.integration.service.conftest import Harness, harness_of, make_settings
from tests.integration.service.test_budgets import PRICE, put, spend, train
from tests.waiting import until

PATH = "/api/v1/projects/default/webhooks"
LOCAL = HttpSettings(webhook_networks=(ip_network("127.0.0.0/8"),))
KEY = secrets.token_bytes(32)


@dataclass
class Received:
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def signed_by(self, secret: str) -> bool:
        """Check the signature as a receiver does."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        signed = f"{self.id}.{self.headers['webhook-timestamp']}.".encode() + self.body
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return f"v1,{expected}" in self.headers["webhook-signature"].split()


@dataclass
class Receiver:
    """An HTTP server that answers as told, and keeps what it got."""

    got: list[Received] = field(default_factory=list)
    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    port: int = 0
    holds: bool = False
    """True to leave requests without an answer."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once their connections may close."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?key=hidden"

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)
        }
        self.got.append(Received(headers, await reader.readexactly(int(headers["content-length"]))))
        if self.holds:
            await self.released.wait()
        else:
            writer.write(self.answer)
        writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Receiver]:
        server = await asyncio.start_server(self.take, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self


@pytest_asyncio.fixture
async def harness(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    settings = make_settings(
        database_url,
        redis_url,
        f"file://{tmp_path}/storage",
        secrets=SecretSettings(keys=(KEY,)),
        http=LOCAL,
        usd_per_slot_h={"cpu": PRICE},
    )
    async with harness_of(settings) as made:
        yield made


@asynccontextmanager
async def scheduling(harness: Harness) -> AsyncIterator[None]:
    """The scheduler as it runs, with all of its loops."""
    working = asyncio.create_task(harness.service.schedule())
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def add(harness: Harness, url: str, name: str = "ci", **fields: Any) -> str:
    response = await harness.client.post(PATH, json={"name": name, "url": url, **fields})
    assert response.status_code == 201, response.text
    assert "hidden" not in response.text
    secret: str = response.json()["secret"]
    return secret


async def items(harness: Harness, path: str = "") -> list[dict[str, Any]]:
    response = await harness.client.get(f"{PATH}{path}")
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["items"]
    return found


async def cancel(harness: Harness, name: str = "job") -> None:
    await harness.submit(name)
    assert (await harness.post(f"jobs/{name}/cancel", {"force": False})).status_code == 202


async def attempt(harness: Harness) -> None:
    """One pass of the loop, to its end."""
    deliveries = harness.service.deliveries(harness.service.database)
    deliveries.now = harness.clock.now
    await deliveries.start()
    await deliveries.settled()


async def test_end_of_a_job_is_delivered_with_a_valid_signature(harness: Harness) -> None:
    async with Receiver().listening() as receiver:
        secret = await add(harness, receiver.url)
        async with scheduling(harness):
            await cancel(harness)
            await until(lambda: bool(receiver.got))
            await until(lambda: delivered(harness, 1))
    (message,) = receiver.got
    assert message.signed_by(secret)
    assert not message.signed_by("whsec_" + base64.b64encode(b"x" * 32).decode())
    body = json.loads(message.body)
    assert (body["type"], body["data"]["name"], body["data"]["state"]) == (
        "job.cancelled",
        "job",
        "CANCELLED",
    )
    (delivery,) = await items(harness, "/ci/deliveries")
    assert (delivery["id"], delivery["state"], delivery["status"]) == (message.id, "delivered", 200)
    assert (delivery["attempts"], delivery["answer"], delivery["next_at"]) == (1, "ok", None)


async def delivered(harness: Harness, count: int) -> bool:
    found = await items(harness, "/ci/deliveries")
    return sum(one["state"] == "delivered" for one in found) == count


async def test_webhook_gets_only_the_topics_it_chose(harness: Harness) -> None:
    async with Receiver().listening() as receiver:
        await add(harness, receiver.url, topics=["job.failed"])
        await cancel(harness)
        await attempt(harness)
    assert receiver.got == []
    assert await items(harness, "/ci/deliveries") == []


async def test_receiver_that_was_down_gets_every_message_once_it_is_up(harness: Harness) -> None:
    receiver = Receiver()
    async with receiver.listening():
        pass
    secret = await add(harness, receiver.url)
    async with scheduling(harness):
        for number in range(5):
            await cancel(harness, f"job{number}")

        async def tried() -> bool:
            found = await items(harness, "/ci/deliveries")
            return len(found) == 5 and all(one["attempts"] for one in found)

        await until(tried)
        (view,) = await items(harness)
        assert (view["enabled"], view["waiting"]) == (True, 5)
        assert "ConnectError" in view["message"]
        async with receiver.listening():
            await until(lambda: delivered(harness, 5))
    assert all(one.signed_by(secret) for one in receiver.got)
    assert len({one.id for one in receiver.got}) == 5
    (view,) = await items(harness)
    assert (view["waiting"], view["message"]) == (0, "")


def held_by_sender(port: int) -> int:
    """Return the number of connections to a port that their client has not closed.

    The state of a client's own socket changes with its call, and that of the server's when the kernel comes to it.
    """
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


async def test_receiver_that_never_answers_holds_four_connections_and_delays_no_other(
    harness: Harness,
) -> None:
    counts: list[int] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counts.append(held_by_sender(writer.get_extra_info("sockname")[1]))
        await reader.read()  # until the sender gives up
        writer.close()

    hole = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with hole, Receiver().listening() as receiver:
        await add(harness, receiver.url)
        await add(harness, f"http://127.0.0.1:{hole.sockets[0].getsockname()[1]}/", "hole")
        async with scheduling(harness):
            for number in range(40):
                await cancel(harness, f"job{number}")
            await until(lambda: len({one.id for one in receiver.got}) == 40)
    assert 0 < max(counts) <= OF_ONE_WEBHOOK


async def test_message_of_a_sender_that_died_is_sent_again_with_the_same_id(harness: Harness) -> None:
    async with Receiver().listening() as receiver:
        await add(harness, receiver.url)
        await cancel(harness)
        dying = harness.service.deliveries(harness.service.database)
        assert await dying.start() == 1
        await until(lambda: len(receiver.got) == 1)
        async with dying.running():
            pass
        harness.clock.skipped += CLAIM + timedelta(seconds=1)
        await attempt(harness)
        await attempt(harness)
    assert len({one.id for one in receiver.got}) == 1
    assert len(receiver.got) in {1, 2}  # the first sender may have stored its success before it died
    assert await delivered(harness, 1)


@pytest.mark.slow  # the claim of a killed sender ends after 20 s
async def test_messages_of_a_killed_scheduler_arrive_after_its_restart_each_with_one_id(
    harness: Harness, database_url: str, redis_url: str, tmp_path: Path
) -> None:
    env = {
        **os.environ,
        "HEADWAY_DATABASE_URL": database_url,
        "HEADWAY_REDIS_URL": redis_url,
        "HEADWAY_STORAGE_URL": f"file://{tmp_path}/storage",
        "HEADWAY_API_TOKEN": "api-token",
        "HEADWAY_JOIN_TOKEN": "join-token",
        "HEADWAY_SECRETS_KEY": KEY.hex(),
        "HEADWAY_WEBHOOK_NETWORKS": "127.0.0.0/8",
    }
    names = [f"job{number}" for number in range(12)]
    async with Receiver().listening() as receiver:
        receiver.holds = True
        await add(harness, receiver.url)
        for name in names:
            await cancel(harness, name)
        first = await asyncio.create_subprocess_exec(sys.executable, "-m", "service", "scheduler", env=env)
        try:
            await until(lambda: len(receiver.got) == OF_ONE_WEBHOOK)
        finally:
            first.kill()
            await first.wait()
        waiting = await items(harness, "/ci/deliveries")
        assert [one["state"] for one in waiting] == ["waiting"] * len(names)  # none was settled
        receiver.holds = False
        receiver.released.set()
        second = await asyncio.create_subprocess_exec(sys.executable, "-m", "service", "scheduler", env=env)
        try:
            await until(lambda: delivered(harness, len(names)))
        finally:
            second.kill()
            await second.wait()
    ids: dict[str, set[str]] = {}
    for one in receiver.got:
        ids.setdefault(json.loads(one.body)["data"]["name"], set()).add(one.id)
    assert sorted(ids) == sorted(names)
    assert [len(found) for found in ids.values()] == [1] * len(names)
    assert len(receiver.got) == len(names) + OF_ONE_WEBHOOK  # those in flight came twice


async def test_message_that_was_committed_before_a_restart_is_delivered_after_it(
    harness: Harness, database_url: str, redis_url: str, tmp_path: Path
) -> None:
    async with Receiver().listening() as receiver:
        await add(harness, receiver.url)
        await cancel(harness)  # no scheduler runs: it was killed before it could send
        async with scheduling(harness):
            await until(lambda: len(receiver.got) == 1)
            await until(lambda: delivered(harness, 1))


async def test_event_of_a_transaction_that_is_rolled_back_leaves_no_message(harness: Harness) -> None:
    await add(harness, "http://127.0.0.1:9/")
    job = await harness.submit()

    async def undone() -> None:
        async with harness.service.database.begin() as tx:
            stored = (await tx.jobs.lock_many([job.id]))[job.id]
            await record(tx, stored, "budget", message="spent", now=harness.clock.now())
            raise LookupError

    with pytest.raises(LookupError):
        await undone()
    assert await items(harness, "/ci/deliveries") == []


async def test_private_addresses_are_refused_and_redirects_are_not_followed(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    settings = make_settings(
        database_url, redis_url, f"file://{tmp_path}/storage", secrets=SecretSettings(keys=(KEY,))
    )
    async with harness_of(settings) as harness, Receiver().listening() as receiver:
        for number, host in enumerate(
            ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0x7f.1", "2130706433")
        ):
            await add(harness, f"http://{host}:{receiver.port}/", f"w{number}")
        await cancel(harness)
        await attempt(harness)
        answers = [(await items(harness, f"/w{number}/deliveries"))[0]["answer"] for number in range(5)]
    assert receiver.got == []
    assert all(one.startswith(("refused", "ConnectError")) for one in answers), answers
    assert sum(one.startswith("refused") for one in answers) >= 3
    allowed = replace(settings, http=LOCAL)
    async with (
        harness_of(allowed) as harness,
        Receiver().listening() as target,
        Receiver().listening() as first,
    ):
        first.answer = (
            f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {target.url}\r\nContent-Length: 0\r\n\r\n".encode()
        )
        await add(harness, first.url, "redirecting")
        await cancel(harness, "other")
        await attempt(harness)
        (delivery,) = await items(harness, "/redirecting/deliveries")
    assert (delivery["state"], delivery["status"], target.got) == ("waiting", 307, [])


async def test_rotation_signs_with_both_secrets_for_a_day_and_then_with_the_new_one(harness: Harness) -> None:
    async with Receiver().listening() as receiver:
        old = await add(harness, receiver.url)
        response = await harness.client.post(f"{PATH}/ci/rotate")
        assert response.status_code == 200, response.text
        new = response.json()["secret"]
        await harness.client.post(f"{PATH}/ci/test")
        await attempt(harness)
        harness.clock.skipped += timedelta(hours=25)
        await harness.client.post(f"{PATH}/ci/test")
        await attempt(harness)
    first, second = receiver.got
    assert (first.signed_by(old), first.signed_by(new)) == (True, True)
    assert (second.signed_by(old), second.signed_by(new)) == (False, True)


async def test_webhook_that_fails_for_a_day_is_disabled_and_enabling_it_sends_what_waits(
    harness: Harness,
) -> None:
    receiver = Receiver()
    async with receiver.listening():
        pass
    await add(harness, receiver.url)
    await harness.client.post(f"{PATH}/ci/test")
    await attempt(harness)
    harness.clock.skipped += TRIED_FOR - timedelta(hours=1)
    await attempt(harness)
    harness.clock.skipped += timedelta(hours=1, minutes=1)
    async with harness.service.database.begin() as tx:
        webhook = await tx.webhooks.lock("default", "ci")
        await tx.outbox.add_to(
            webhook, "job.failed", {"project": "default", "message": "late"}, harness.clock.now()
        )
    await attempt(harness)
    (view,) = await items(harness)
    assert view["enabled"] is False
    assert "24 h" in view["message"]
    refused = await harness.client.post(f"{PATH}/ci/test")
    assert (refused.status_code, refused.json()["code"]) == (409, "illegal_transition")
    enabled = await harness.client.patch(f"{PATH}/ci", json={"enabled": True})
    assert (enabled.status_code, enabled.json()["enabled"], enabled.json()["message"]) == (200, True, "")
    async with receiver.listening():
        await attempt(harness)
    assert [json.loads(one.body)["data"]["message"] for one in receiver.got] == ["late"]


async def test_secrets_are_sealed_shown_once_and_opened_by_a_new_key_after_its_rotation(
    harness: Harness,
) -> None:
    async with Receiver().listening() as receiver:
        secret = await add(harness, receiver.url)
        new_key = secrets.token_bytes(32)
        assert await reseal_webhooks(harness.service.database, EnvKeyRing((new_key, KEY))) == 1
        await harness.client.post(f"{PATH}/ci/test")
        deliveries = harness.service.deliveries(harness.service.database)
        deliveries.keys = EnvKeyRing((new_key,))
        await deliveries.start()
        await deliveries.settled()
    assert receiver.got[0].signed_by(secret)
    listed = (await harness.client.get(PATH)).text
    assert secret not in listed
    assert "hidden" not in listed
    audit = (await harness.client.get("/api/v1/audit")).json()["items"]
    assert {"create_webhook", "test_webhook"} <= {one["action"] for one in audit}
    assert all("hidden" not in json.dumps(one) and secret not in json.dumps(one) for one in audit)


async def test_threshold_of_a_projects_budget_is_one_message_and_one_for_each_job(harness: Harness) -> None:
    await harness.scheduler.accrue()
    await add(harness, "http://127.0.0.1:9/")
    await put(harness, "month", usd=1, period="month", project="default")
    agent = await harness.join(slots=2)
    await train(harness, agent)
    await spend(harness, agent, 60)
    found = await items(harness, "/ci/deliveries")
    assert sorted(one["topic"] for one in found) == ["budget.threshold", "job.budget"]


async def test_wrong_urls_and_taken_names_are_refused(harness: Harness) -> None:
    for url in ("ftp://example.com", "http://", "https://user:pw@example.com", "http://example.com:99999"):
        response = await harness.client.post(PATH, json={"name": "ci", "url": url})
        assert response.status_code == 422, url
    await add(harness, "https://example.com")
    again = await harness.client.post(PATH, json={"name": "ci", "url": "https://example.com"})
    assert (again.status_code, again.json()["code"]) == (409, "name_taken")
    missing = await harness.client.post(
        "/api/v1/projects/nowhere/webhooks", json={"name": "ci", "url": "https://example.com"}
    )
    assert missing.status_code == 404
    assert (await harness.client.delete(f"{PATH}/ci")).status_code == 204
    assert await items(harness) == []
