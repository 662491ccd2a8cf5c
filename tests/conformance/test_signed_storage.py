"""Checkpoints without keys on hosts: what the service signs, and what the library does with it against an S3 server."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import httpx
import pytest
from botocore.config import Config
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.contract.credentials import OBJECT_KEY_PATTERN, SignRequest, StorageCall
from headway.local.ports import HOST
from headway.storage import signed
from headway.storage.signed import SignedStore
from headway.storage.stores import open_storage
from service.adapters.s3_access import Presigner, S3Signer
from service.adapters.storage_access import storage_signer
from service.settings import SettingsError
from tests.conformance.conftest import BUCKET
from tests.integration.service.conftest import make_settings

PREFIX = "checkpoints/j00000001/"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


def signer(endpoint_url: str, root: str = "root") -> S3Signer:
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path"},
        request_checksum_calculation="when_required",
    )
    client = boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=config,
    )
    return S3Signer(f"s3://{BUCKET}/{root}".rstrip("/"), client)


@dataclass
class Paged:
    """Has a store answer lists in pages of so many keys: by itself it takes a thousand."""

    signs: Presigner
    keys: int

    def generate_presigned_url(self, operation: str, *, Params: dict[str, Any], ExpiresIn: int) -> str:  # noqa: N803
        more = {"MaxKeys": self.keys} if operation == "list_objects_v2" else {}
        return self.signs.generate_presigned_url(operation, Params={**Params, **more}, ExpiresIn=ExpiresIn)


class Service:
    """Signs as the service does, for whoever has the ticket; and notes what it was asked for."""

    def __init__(self, signs: S3Signer) -> None:
        self.asked: list[StorageCall] = []
        self.ticket = "first"
        self.failures: list[int] = []
        self.keys_in_a_page = 1000
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = service.answer(self.headers["Authorization"], body, signs)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, shown: str, body: bytes, signs: S3Signer) -> tuple[int, Any]:
        if self.failures:
            return self.failures.pop(0), {}
        if shown != f"Bearer {self.ticket}":
            return 401, {"detail": "this is no ticket"}
        calls = SignRequest.model_validate_json(body).calls
        self.asked += calls
        paged = S3Signer(f"s3://{BUCKET}/root", Paged(signs._client, self.keys_in_a_page))
        return 200, {"urls": paged._sign(f"root/{PREFIX}", calls, 600), "expires_at": "2030-01-01T00:00:00Z"}


@pytest.fixture
def service(s3_server: str) -> Iterator[Service]:
    made = Service(signer(s3_server))
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def ticket(service: Service, tmp_path: Path) -> Path:
    file = tmp_path / "storage.json"
    file.write_text(json.dumps({"ticket": "first", "service_url": service.url, "ca_pem": ""}))
    return file


@pytest.fixture
def store(ticket: Path) -> Iterator[SignedStore]:
    found = open_storage(f"s3://{BUCKET}/root/{PREFIX}", ticket)
    assert isinstance(found, SignedStore), "a ticket in the file chooses it"
    yield found
    for key in found.keys():  # noqa: SIM118
        found.delete(key)


def test_objects_come_and_go(store: SignedStore) -> None:
    store.put("step-1/a.safetensors", b"weights")
    store.put("step-1/b.safetensors", iter([memoryview(b"we"), b"ights"]))
    assert store.get("step-1/a.safetensors") == store.get("step-1/b.safetensors") == b"weights"
    assert sorted(store.keys()) == ["step-1/a.safetensors", "step-1/b.safetensors"]
    store.put("step-1/a.safetensors", b"others")
    assert store.get("step-1/a.safetensors") == b"others"
    store.delete("step-1/a.safetensors")
    store.delete("step-1/a.safetensors")
    assert store.keys() == ["step-1/b.safetensors"]
    with pytest.raises(FileNotFoundError, match=r"step-1/a\.safetensors"):
        store.get("step-1/a.safetensors")


def test_large_objects_go_in_parts(store: SignedStore, service: Service) -> None:
    block = os.urandom(6 * 2**20)
    store.put("large", iter([block] * 3))
    assert store.get("large") == block * 3
    asked = [call.do for call in service.asked]
    assert asked.count("complete") == 1
    assert "put" not in asked, "18 MiB are no single request"


def test_what_breaks_off_leaves_nothing(store: SignedStore, service: Service, s3_server: str) -> None:
    def breaks_off() -> Iterator[bytes]:
        yield bytes(34 * 2**20)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        store.put("half", breaks_off())
    assert store.keys() == []
    assert service.asked[-2].do == "abort"
    assert "<UploadId>" not in httpx.get(f"{s3_server}/{BUCKET}?uploads").text


def test_many_keys_are_listed_page_by_page(store: SignedStore, service: Service) -> None:
    wanted = [f"step-{number}/part" for number in range(5)]
    for key in wanted:
        store.put(key, b"x")
    service.keys_in_a_page = 2
    assert store.keys() == wanted
    assert [call.key for call in service.asked if call.do == "list"] == [None, wanted[1], wanted[3]]


def test_a_service_that_is_busy_is_asked_again(store: SignedStore, service: Service) -> None:
    service.failures = [503, 429]
    store.put("a", b"1")
    assert store.get("a") == b"1"


def test_a_ticket_that_was_renewed_is_read_again(store: SignedStore, service: Service, ticket: Path) -> None:
    service.ticket = "second"
    with pytest.raises(OSError, match="401"):
        store.put("a", b"1")
    ticket.write_text(ticket.read_text().replace("first", "second"))
    store.put("a", b"1")


def test_a_run_that_is_over_fails_and_not_as_if_there_were_no_checkpoint(
    store: SignedStore, service: Service
) -> None:
    service.failures = [404]
    with pytest.raises(OSError, match="signs nothing for this run") as caught:
        store.get("a")
    assert not isinstance(caught.value, FileNotFoundError)


def test_a_store_that_is_away_is_said_without_its_url(store: SignedStore, service: Service) -> None:
    def nobody() -> signed.Answer:
        return store._request("GET", f"http://{HOST}:9/bucket/key?X-Amz-Signature=secret", None)

    with pytest.raises(OSError, match="no answer") as caught:
        nobody()
    assert "Signature" not in str(caught.value)


names = st.text(st.sampled_from("aZ09._~-/%:?&=+ *"), min_size=1, max_size=30)


@given(
    name=names, root=st.sampled_from(["", "a", "a/b"]), do=st.sampled_from(["get", "put", "delete", "list"])
)
def test_whatever_is_signed_is_about_the_own_prefix(name: str, root: str, do: Any) -> None:
    try:
        call = StorageCall(do=do, key=name)
    except ValidationError:
        return
    assert not {"", ".", ".."} & set(name.split("/"))
    under = f"{root}/{PREFIX}".lstrip("/")
    url = urlsplit(signer("http://store:9000", root)._sign(under, [call], 60)[0])
    asked = parse_qs(url.query)
    if do == "list":
        assert (url.path, asked["prefix"]) == (f"/{BUCKET}", [under])
        assert asked["start-after"] == [f"{under}{name}"]
    else:
        assert url.path == f"/{BUCKET}/{under}{name}"
    assert asked["X-Amz-Expires"] == ["60"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"do": "get"},
        {"do": "get", "key": "../j00000002/part"},
        {"do": "get", "key": "a/../../b"},
        {"do": "get", "key": "/a"},
        {"do": "get", "key": "a//b"},
        {"do": "get", "key": "a\n"},
        {"do": "get", "key": "a", "upload_id": "x"},
        {"do": "part", "key": "a", "upload_id": "x"},
        {"do": "part", "key": "a", "part": 1},
        {"do": "part", "key": "a", "upload_id": "x", "part": 10_001},
        {"do": "complete", "key": "a"},
        {"do": "acl", "key": "a"},
    ],
)
def test_what_is_no_request_about_a_checkpoint_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        StorageCall(**wrong)
    assert OBJECT_KEY_PATTERN


def test_signing_is_for_an_s3_store_and_excludes_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_settings("postgresql://h/d", "redis://h", "file:///data", storage_signed=True)
    with pytest.raises(SettingsError, match="s3://"):
        storage_signer(folder, {})
    both = make_settings(
        "postgresql://h/d", "redis://h", f"s3://{BUCKET}", storage_signed=True, storage_role="arn:x"
    )
    with pytest.raises(SettingsError, match="set one"):
        storage_signer(both, {})
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    right = make_settings("postgresql://h/d", "redis://h", f"s3://{BUCKET}/root", storage_signed=True)
    made = storage_signer(right, {"AWS_ENDPOINT_URL": "http://store:8333"})
    assert made is not None
    assert made.uri_of(PREFIX) == f"s3://{BUCKET}/root/checkpoints/j00000001"
    off = make_settings("postgresql://h/d", "redis://h", f"s3://{BUCKET}")
    assert storage_signer(off, {}) is None
