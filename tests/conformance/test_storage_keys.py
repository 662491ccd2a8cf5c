"""Keys for the checkpoints of one job: what they say, from a server that speaks like AWS, and what the library does with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.credentials import StorageCredentials
from headway.contract.runtime import STORAGE_AWAY
from headway.storage.stores import open_storage
from service.adapters.s3_access import VALID_S, StsKeys, session_policy
from service.adapters.storage_access import HostKeys, storage_keys
from service.domain.shared.errors import Unavailable
from service.settings import Settings, SettingsError
from tests.conformance.conftest import BUCKET
from tests.faulty_store import faulty_store
from tests.integration.service.conftest import make_settings
from tests.waiting import until

ROLE = "arn:aws:iam::123456789012:role/headway-checkpoints"
job_ids = st.from_regex(r"j[0-9a-z]{8,40}", fullmatch=True)
names = st.text(st.sampled_from("abj0/._-*"), max_size=12)


def allows(policy: Mapping[str, Any], action: str, resource: str, prefix: str | None = None) -> bool:
    """Return whether a policy of `Allow` statements permits the action. As in IAM, all else is denied."""
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        assert set(statement) <= {"Effect", "Action", "Resource", "Condition"}
        actions = statement["Action"]
        if action not in ([actions] if isinstance(actions, str) else actions):
            continue
        like = statement.get("Condition", {"StringLike": {"s3:prefix": "*"}})["StringLike"]["s3:prefix"]
        if fnmatchcase(resource, statement["Resource"]) and fnmatchcase(prefix or "", like):
            return True
    return False


@pytest.mark.slow
@given(own=job_ids, other=job_ids, name=names, root=st.sampled_from(["", "headway/", "a/b/"]))
def test_keys_reach_the_own_checkpoints_and_no_others(own: str, other: str, name: str, root: str) -> None:
    policy = session_policy(BUCKET, f"{root}checkpoints/{own}/")
    bucket = f"arn:aws:s3:::{BUCKET}"
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
        assert allows(policy, action, f"{bucket}/{root}checkpoints/{own}/{name}")
        assert not allows(policy, action, f"{bucket}/{root}logs/{own}/{name}")
        assert not allows(policy, action, f"{bucket}/{root}bundles/{name}")
        assert not allows(policy, action, f"{bucket}/{root}checkpoints/{own}")
        assert not allows(policy, action, f"{bucket}-2/{root}checkpoints/{own}/{name}")
        if other != own:
            assert not allows(policy, action, f"{bucket}/{root}checkpoints/{other}/{name}")
    assert allows(policy, "s3:ListBucket", bucket, f"{root}checkpoints/{own}/")
    for prefix in (None, "", root, f"{root}checkpoints/", f"{root}checkpoints/{own}"):
        assert not allows(policy, "s3:ListBucket", bucket, prefix)
    if other != own:
        assert not allows(policy, "s3:ListBucket", bucket, f"{root}checkpoints/{other}/")
    for action in (
        "s3:PutBucketPolicy",
        "s3:DeleteBucket",
        "s3:PutObjectAcl",
        "sts:AssumeRole",
        "iam:PassRole",
    ):
        assert not allows(policy, action, f"{bucket}/{root}checkpoints/{own}/{name}")
        assert not allows(policy, action, bucket)


class Recorder:
    """Stands in for AWS where it says no, and notes what it was asked for."""

    def __init__(self) -> None:
        self.wanted: dict[str, Any] = {}

    def assume_role(self, **wanted: Any) -> Mapping[str, Any]:
        self.wanted = wanted
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "not you"}}, "AssumeRole")


async def test_a_role_that_is_refused_is_told_of() -> None:
    recorder = Recorder()
    keys = StsKeys("s3://bucket/root/", ROLE, recorder, endpoint_url=None, region=None)
    with pytest.raises(Unavailable, match="HEADWAY_STORAGE_ROLE"):
        await keys.keys_for("checkpoints/j00000001/", "n01/a b")
    assert json.loads(recorder.wanted["Policy"]) == session_policy("bucket", "root/checkpoints/j00000001/")
    assert (recorder.wanted["RoleArn"], recorder.wanted["RoleSessionName"]) == (ROLE, "n01-a-b")


@pytest.mark.parametrize("answers", [True, False])
async def test_keys_from_an_endpoint_that_is_away_are_no_error_of_the_role(*, answers: bool) -> None:
    with faulty_store() as store:
        store.away = True
        client = boto3.client(
            "sts",
            endpoint_url=store.url,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
            config=Config(retries={"total_max_attempts": 1}),
        )
        keys = StsKeys("s3://bucket/root/", ROLE, client, endpoint_url=None, region=None)
        if answers:
            with pytest.raises(Unavailable, match=rf"{STORAGE_AWAY} .*503"):
                await keys.keys_for("checkpoints/j00000001/", "n01")
            return
    with pytest.raises(Unavailable, match=rf"{STORAGE_AWAY} .*EndpointConnectionError"):
        await keys.keys_for("checkpoints/j00000001/", "n01")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings("postgresql://h/d", "redis://h", f"s3://{BUCKET}/root", storage_role=ROLE)


@pytest.mark.usefixtures("s3_environment")
async def test_the_library_saves_and_restores_with_the_keys(
    settings: Settings, s3_server: str, tmp_path: Path
) -> None:
    made = storage_keys(settings, {"AWS_ENDPOINT_URL": s3_server, "AWS_REGION": "us-east-1"})
    found = await made.keys_for("checkpoints/j00000001/", "n01-1")
    assert found is not None
    assert (found.uri, found.endpoint_url) == (f"s3://{BUCKET}/root/checkpoints/j00000001", s3_server)
    left_s = (found.expires_at - datetime.now(UTC)).total_seconds()
    assert VALID_S - 120 < left_s <= VALID_S + 120
    file = tmp_path / "storage.json"
    file.write_text(found.model_dump_json())
    storage = open_storage(found.uri, file)
    storage.put("step-1/part", b"weights")
    assert storage.keys() == ["step-1/part"]
    assert storage.get("step-1/part") == b"weights"
    storage.delete("step-1/part")
    assert storage.keys() == []


async def test_keys_are_read_again_before_they_expire(s3_server: str, tmp_path: Path) -> None:
    def kept(key: str, valid: timedelta) -> str:
        return StorageCredentials(
            uri=f"s3://{BUCKET}/again",
            endpoint_url=s3_server,
            region="us-east-1",
            access_key_id=key,
            secret_access_key="secret",
            session_token="token",
            expires_at=datetime.now(UTC) + valid,
        ).model_dump_json()

    file = tmp_path / "storage.json"
    file.write_text(kept("first", timedelta(seconds=1)))
    storage = open_storage(f"s3://{BUCKET}/again", file)
    storage.put("a", b"1")
    file.write_text("{}")

    def fails() -> bool:
        """The store asks for keys at most every tenth of a second."""
        try:
            storage.put("b", b"1")
        except OSError as error:
            return "access_key_id" in str(error)
        return False

    await until(fails)
    file.write_text(kept("second", timedelta(hours=1)))
    storage.put("b", b"2")
    file.unlink()
    assert storage.get("b") == b"2", "those that are good for long are not read for every request"


def test_a_role_is_for_an_object_store_that_knows_roles(settings: Settings) -> None:
    folder = make_settings("postgresql://h/d", "redis://h", "file:///data", storage_role=ROLE)
    with pytest.raises(SettingsError, match="s3://"):
        storage_keys(folder, {})
    plain = make_settings("postgresql://h/d", "redis://h", f"s3://{BUCKET}")
    assert isinstance(storage_keys(plain, {}), HostKeys)


async def test_without_a_role_hosts_use_their_own_keys() -> None:
    assert await HostKeys().keys_for("checkpoints/j00000001/", "n01") is None  # type: ignore[func-returns-value]
