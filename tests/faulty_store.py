"""An S3 server on loopback that answers 503, or lists its objects as they were at an earlier moment."""

from __future__ import annotations

import io
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote
from xml.sax.saxutils import escape

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import make_server

HOST = "127.0.0.1"
BUCKET = "kept"
_UNAVAILABLE = (
    b"<Error><Code>ServiceUnavailable</Code><Message>Please reduce your request rate.</Message></Error>"
)
Start = Callable[..., Any]


@dataclass
class FaultyStore:
    """The server. `away`: every request is answered 503. `stale`: lists are those of the last `remember`."""

    url: str = ""
    away: bool = False
    stale: bool = False
    refused: int = 0
    """Requests that were answered 503."""
    _app: Any = field(default_factory=lambda: DomainDispatcherApplication(create_backend_app))
    _remembered: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which S3 clients find the server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_REGION": "us-east-1",
        }

    def remember(self) -> None:
        """Note size and time of every object now: this is what `stale` lists show from here on."""
        bucket = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].get_bucket(BUCKET)
        self._remembered = {
            str(key): (one.size, f"{one.last_modified:%Y-%m-%dT%H:%M:%S.000Z}")
            for key, one in bucket.keys.items()
        }

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        """Answer a request, as WSGI asks for it."""
        if environ.get("HTTP_TRANSFER_ENCODING", "") != "chunked":
            size = int(environ.get("CONTENT_LENGTH") or 0)
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(size))
        if self.away:
            self.refused += 1
            start("503 Service Unavailable", [("Content-Type", "application/xml"), *_length(_UNAVAILABLE)])
            return [_UNAVAILABLE]
        query = {name: one[0] for name, one in parse_qs(environ["QUERY_STRING"]).items()}
        if self.stale and "list-type" in query:
            listed = self._listed(query)
            start("200 OK", [("Content-Type", "application/xml"), *_length(listed)])
            return [listed]
        answer: Iterable[bytes] = self._app(environ, start)
        return answer

    def _listed(self, query: dict[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        after = query.get("start-after", "")
        text = quote if query.get("encoding-type") == "url" else escape
        keys, folders = [], set()
        for key in sorted(key for key in self._remembered if key.startswith(prefix) and key > after):
            inner = key[len(prefix) :]
            if delimiter is not None and delimiter in inner:
                folders.add(prefix + inner.partition(delimiter)[0] + delimiter)
                continue
            size, at = self._remembered[key]
            keys.append(
                f"<Contents><Key>{text(key)}</Key><LastModified>{at}</LastModified><ETag>&quot;0&quot;</ETag>"
                f"<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            )
        shared = "".join(
            f"<CommonPrefixes><Prefix>{text(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)
        )
        encoding = "<EncodingType>url</EncodingType>" if text is quote else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
            f"<Name>{BUCKET}</Name><Prefix>{text(prefix)}</Prefix>{encoding}<KeyCount>{len(keys) + len(folders)}"
            f"</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{''.join(keys)}{shared}"
            "</ListBucketResult>"
        ).encode()


def _length(body: bytes) -> list[tuple[str, str]]:
    return [("Content-Length", str(len(body)))]


@contextmanager
def faulty_store() -> Iterator[FaultyStore]:
    """A server with an empty bucket, until the block ends."""
    store = FaultyStore()
    server = make_server(HOST, 0, store, threaded=True)
    store.url = f"http://{HOST}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        # The server of an earlier test in this process had the same backend.
        urllib.request.urlopen(
            urllib.request.Request(f"{store.url}/moto-api/reset", method="POST"), timeout=60
        ).close()
        urllib.request.urlopen(
            urllib.request.Request(f"{store.url}/{BUCKET}", method="PUT"), timeout=60
        ).close()
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
