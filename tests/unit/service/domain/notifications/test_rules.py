"""Signatures, addresses, retries and bodies of webhooks' messages."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network

import pytest

from headway.contract.views.webhooks import DeliveryState, WebhookFormat
from service.domain.notifications.addresses import is_allowed
from service.domain.notifications.messages import body_of
from service.domain.notifications.retries import LONGEST_DELAY_S, TRIED_FOR, Answer, delay_s, judge
from service.domain.notifications.signature import SECRET_PREFIX, headers_of, written

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
JOB = {"id": "j1", "name": "digits", "project": "vision", "state": "FAILED", "message": "a <b> & c"}


def test_signature_of_the_specifications_example_is_its_own() -> None:
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    at = datetime.fromtimestamp(1614265330, UTC)
    headers = headers_of("msg_p5jXN8AQM9LWM0D4loKWxJek", at, b'{"test": 2432232314}', [secret])
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert written(secret) == f"{SECRET_PREFIX}MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1"),
    ],
)
def test_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_allowed(address, ())


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_address_is_allowed(address: str) -> None:
    assert is_allowed(address, ())


def test_private_address_in_an_allowed_network_is_allowed() -> None:
    allowed = (ip_network("10.0.0.0/8"),)
    assert is_allowed("10.1.2.3", allowed)
    assert is_allowed("::ffff:10.1.2.3", allowed)
    assert not is_allowed("192.168.1.1", allowed)


def test_delay_doubles_from_a_second_to_an_hour_and_jitter_takes_at_most_half() -> None:
    assert [delay_s(count, 1.0) for count in (1, 2, 3, 12, 13, 10_000)] == [1, 2, 4, 2048, 3600, 3600]
    assert delay_s(3, 0.0) == 2
    assert delay_s(13, 0.0) == LONGEST_DELAY_S / 2


def verdict(answer: Answer, *, age: timedelta = timedelta(), failing: timedelta = timedelta()):
    return judge(answer, attempts=3, created_at=NOW - age, failing_since=NOW - failing, now=NOW, chance=1.0)


def test_accepted_message_is_delivered_and_a_redirect_is_a_failure() -> None:
    assert verdict(Answer(204, "")).state is DeliveryState.DELIVERED
    again = verdict(Answer(302, ""))
    assert (again.state, again.next_at, again.disable) == (
        DeliveryState.WAITING,
        NOW + timedelta(seconds=4),
        "",
    )


def test_message_is_given_up_after_its_time_and_disables_only_a_webhook_that_failed_as_long() -> None:
    old = verdict(Answer(None, "down"), age=TRIED_FOR)
    assert (old.state, old.next_at, old.disable) == (DeliveryState.FAILED, None, "")
    both = verdict(Answer(503, "down"), age=TRIED_FOR, failing=TRIED_FOR)
    assert both.state is DeliveryState.FAILED
    assert "503 down" in both.disable
    young = verdict(Answer(503, "down"), failing=TRIED_FOR)
    assert young.state is DeliveryState.WAITING
    assert young.disable


def test_gone_receiver_disables_the_webhook_at_once() -> None:
    gone = verdict(Answer(410, ""))
    assert gone.state is DeliveryState.FAILED
    assert gone.disable


def test_slack_body_escapes_the_message_and_links_to_the_job() -> None:
    body = json.loads(body_of("job.failed", NOW, JOB, WebhookFormat.SLACK, "https://headway.example.com"))
    assert body == {
        "text": "[vision] <https://headway.example.com/jobs/j1|digits> is FAILED (job.failed): a &lt;b&gt; &amp; c"
    }


def test_standard_body_has_type_timestamp_and_data() -> None:
    body = json.loads(body_of("job.failed", NOW, JOB, WebhookFormat.STANDARD, "https://headway.example.com"))
    assert (body["type"], body["timestamp"]) == ("job.failed", "2026-11-01T12:00:00+00:00")
    assert body["data"] == {**JOB, "url": "https://headway.example.com/jobs/j1"}
