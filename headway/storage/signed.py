"""Checkpoints in an S3 store for ranks without keys: the service signs each request, and the bytes go to the
store itself.

A ticket in the run's control folder identifies the job to the service. The agent renews the ticket, and this
module reads it again for every request. Large objects are uploaded in parts, a few at once.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import suppress
from http.client import HTTPException, HTTPMessage
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, TypeAlias
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import escape

from headway.contract.runtime import STORAGE_AWAY
from headway.proxies import is_loopback
from headway.storage.stores import WHAT_REFUSED, Bytes, Data, StorageAway, may_pass

Answer: TypeAlias = tuple[HTTPMessage, bytearray]
Tags: TypeAlias = list[tuple[int, str]]
_PART_BYTES = 16 * 2**20
_PARTS_OF_A_SIZE = 1000
"""Number of parts of one size, after which the size grows. A store takes at most 10,000 parts: up to 880 GB."""
_AT_ONCE = 4
_AHEAD = 16
"""Number of parts for which one request fetches signed URLs."""
_RETRY_FOR_S = 30.0
"""Retry limit for a store or service that does not answer. Training waits, then the checkpoint fails."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 5.0
_TIMEOUT_S = 60.0
_NOT_FOUND = 404


class _Status(OSError):
    """An HTTP error, or the absence of an answer (`status` 0)."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)

    @property
    def passes(self) -> bool:
        """True for an error that a retry may cure."""
        return may_pass(self.status)


class SignedStore:
    """A `Storage` whose file `ticket` the agent writes, as `contract.credentials.StorageTicket`."""

    def __init__(self, uri: str, ticket: Path) -> None:
        self.uri = uri.rstrip("/")
        self._ticket = ticket
        self._trusted = ssl.create_default_context()
        certificates = self._read().get("ca_pem")
        if certificates:
            self._trusted.load_verify_locations(cadata=certificates)
        self._pool = futures.ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headway-upload")

    def put(self, key: str, data: Data) -> None:
        """Upload an object; a large one in parts, which the store joins when all have arrived."""
        if isinstance(data, Bytes):
            self._call("PUT", {"do": "put", "key": key}, data)
            return
        pieces = _parts(data)
        first, second = next(pieces, b""), next(pieces, None)
        if second is None:
            self._call("PUT", {"do": "put", "key": key}, first)
            return
        _, begun = self._call("POST", {"do": "begin", "key": key}, b"")
        upload = {"key": key, "upload_id": _text(begun, "UploadId")}
        try:
            tags = self._upload(upload, chain([first, second], pieces))
            _check_complete(self._call("POST", {"do": "complete", **upload}, _completion(tags))[1], key)
        except BaseException:
            with suppress(OSError):  # the parts take up space until the store's own rule removes them
                self._call("DELETE", {"do": "abort", **upload})
            raise

    def get(self, key: str) -> bytearray:
        """Download an object as a whole."""
        return self._call("GET", {"do": "get", "key": key})[1]

    def keys(self) -> list[str]:
        """Return all keys under the URI."""
        found: list[str] = []
        while True:
            _, page = self._call("GET", {"do": "list", "key": found[-1]} if found else {"do": "list"})
            root = _root(page)
            space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
            decode = unquote if root.findtext(f"{space}EncodingType") == "url" else str
            prefix = decode(root.findtext(f"{space}Prefix") or "")
            new = [decode(one.findtext(f"{space}Key") or "") for one in root.iter(f"{space}Contents")]
            found += [name.removeprefix(prefix) for name in new]
            if root.findtext(f"{space}IsTruncated") != "true" or not new:
                return found

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is no error."""
        with suppress(FileNotFoundError):
            self._call("DELETE", {"do": "delete", "key": key})

    def _upload(self, upload: dict[str, Any], pieces: Iterator[Bytes]) -> Tags:
        """Send the parts, a few at once, and return their numbers and ETags. Only these few are in memory."""
        tags: Tags = []
        in_progress: deque[futures.Future[tuple[int, str]]] = deque()
        urls: deque[str] = deque()
        try:
            for number, piece in enumerate(pieces, 1):
                if not urls:
                    coming = range(number, min(number + _AHEAD, 10_001))
                    urls.extend(self._sign([{"do": "part", **upload, "part": one} for one in coming]))
                if len(in_progress) == _AT_ONCE:
                    tags.append(in_progress.popleft().result())
                in_progress.append(self._pool.submit(self._send_part, upload, number, urls.popleft(), piece))
            return tags + [one.result() for one in in_progress]
        finally:
            futures.wait(in_progress)

    def _send_part(self, upload: dict[str, Any], number: int, url: str, piece: Bytes) -> tuple[int, str]:
        headers, _ = self._call("PUT", {"do": "part", **upload, "part": number}, piece, url)
        return number, headers.get("ETag", "")

    def _call(self, method: str, call: dict[str, Any], data: Bytes | None = None, url: str = "") -> Answer:
        """Send a request to the store, first by `url` if one is signed already."""
        key = call.get("key", "the list of checkpoints")
        signed = deque([url] if url else [])

        def attempt() -> Answer:
            place = signed.popleft() if signed else self._sign([call])[0]
            return self._request(method, place, data)

        return _with_retries(attempt, key)

    def _sign(self, calls: list[dict[str, Any]]) -> list[str]:
        kept = self._read()
        body = json.dumps({"calls": calls}).encode()
        headers = {"Authorization": f"Bearer {kept['ticket']}", "Content-Type": "application/json"}
        place = f"{kept['service_url']}/api/v1/storage/signatures"
        try:
            _, answer = self._request("POST", place, body, headers)
        except _Status as refused:
            if refused.status != _NOT_FOUND:  # the service refuses the run, not a single object
                raise
            raise OSError(
                f"the service signs nothing for this run, because the node no longer holds it: {refused}"
            ) from refused
        urls: list[str] = json.loads(answer)["urls"]
        return urls

    def _read(self) -> dict[str, Any]:
        kept: dict[str, Any] = json.loads(self._ticket.read_text(encoding="utf-8"))
        return kept

    def _opener(self, url: str) -> urllib.request.OpenerDirector:
        handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=self._trusted)]
        if is_loopback(urlsplit(url).hostname or ""):
            handlers.append(urllib.request.ProxyHandler({}))
        return urllib.request.build_opener(*handlers)

    def _request(
        self, method: str, url: str, data: Bytes | None, headers: dict[str, str] | None = None
    ) -> Answer:
        kind = {"Content-Type": "application/octet-stream"} if headers is None else headers
        request = urllib.request.Request(url, data=data, method=method, headers=kind)  # noqa: S310
        try:
            with self._opener(url).open(request, timeout=_TIMEOUT_S) as response:
                return response.headers, _whole(response)
        except urllib.error.HTTPError as error:
            with error:
                raise _Status(error.code, f"{error.code} {_short(error.read(2000))}") from None
        except (OSError, HTTPException) as error:
            # The URL is left out of the message: it alone authorises the request.
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise _Status(0, f"no answer ({reason})") from None


def _with_retries(attempt: Callable[[], Answer], key: str) -> Answer:
    """Retry until the call succeeds or the time is up. Raises FileNotFoundError, OSError."""
    until_s = time.monotonic() + _RETRY_FOR_S
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return attempt()
        except _Status as error:
            if not error.passes or time.monotonic() + wait_s > until_s:
                _fail(key, error)
        threading.Event().wait(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _fail(key: str, error: _Status) -> NoReturn:
    if error.status == _NOT_FOUND:
        raise FileNotFoundError(f"{key}: not in the store")
    if error.passes:
        raise StorageAway(f"{STORAGE_AWAY} ({key}: {error})")
    raise OSError(f"{key}: {error}{WHAT_REFUSED}")


def _whole(response: Any) -> bytearray:
    """Read a whole response, without a second copy of it if its length is known."""
    length = response.headers.get("Content-Length")
    if length is None:
        return bytearray(response.read())
    data = bytearray(int(length))
    view, at = memoryview(data), 0
    while at < len(data):
        count = response.readinto(view[at:])
        if not count:
            raise HTTPException(f"{at} bytes of {len(data)}")
        at += count
    return data


def _parts(data: Iterable[Bytes]) -> Iterator[bytearray]:
    """Join and split the pieces into parts of the sizes that a store accepts."""
    sent, part = 0, bytearray()
    for piece in data:
        view = memoryview(piece)
        while view:
            missing = _PART_BYTES * (1 + sent // _PARTS_OF_A_SIZE) - len(part)
            part += view[:missing]
            if len(view) >= missing:
                yield part
                sent, part = sent + 1, bytearray()
            view = view[missing:]
    if part:
        yield part


def _completion(tags: Tags) -> bytes:
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag></Part>" for number, tag in tags
    )
    return f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()


def _check_complete(answer: bytearray, key: str) -> None:
    """Raise OSError for a failure that the store reports only in the body of a successful response."""
    if _root(answer).tag.endswith("Error"):
        raise OSError(f"{key}: the store could not put its parts together: {_short(answer)}")


def _root(answer: bytes | bytearray) -> ET.Element:
    try:
        return ET.fromstring(bytes(answer))  # noqa: S314  # the service names the store
    except ET.ParseError as error:
        raise OSError(f"the store does not answer like S3: {_short(answer)}") from error


def _text(answer: bytes | bytearray, name: str) -> str:
    found = next((one.text for one in _root(answer).iter() if one.tag.endswith(name)), None)
    if not found:
        raise OSError(f"the store does not answer like S3: {_short(answer)}")
    return found


def _short(answer: bytes | bytearray) -> str:
    return " ".join(bytes(answer[:300]).decode(errors="replace").split())
