"""A proxy between the EC2 provider and moto's server: EC2's rules that moto does not keep, and faults on demand.

- A client token makes a launch happen once; the same token with another request is refused, as AWS documents it.
- moto has no price list: `prices` is one.
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import httpx

DOLLARS = {"USD": "0.5260000000"}


@dataclass
class Fault:
    """A fault of the next `times` requests of an action."""

    action: str
    status: int = 500
    code: str = "InternalError"
    lost: bool = False
    """The request is carried out, and the connection breaks before the answer."""
    doubled: bool = False
    """The request is carried out twice."""
    until: threading.Event | None = None
    """It is carried out, and answered when this is set."""
    times: int = 1


@dataclass
class FaultyAws:
    """An HTTP server before moto's. `faults` is looked at by every request."""

    server_url: str
    prices: dict[str, dict[str, str]] = field(default_factory=dict)
    """Price of an hour on demand by instance type, by currency."""
    faults: list[Fault] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """The actions of all requests."""
    capacity: int | None = None
    """Machines that a launch may ask for at once."""
    page_size: int | None = None
    url: str = field(init=False)
    launched: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        handler = type("Handler", (_Handler,), {"aws": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01])
        self._thread.start()
        self.forward = httpx.Client(base_url=self.server_url, timeout=30.0)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.forward.close()

    def reset(self, *, prices: dict[str, dict[str, str]]) -> None:
        """Forget faults, limits and requests."""
        with self.lock:
            self.prices = prices
            self.faults, self.asked, self.launched = [], [], {}
            self.capacity = self.page_size = None

    def fault(self, action: str) -> Fault | None:
        with self.lock:
            self.asked.append(action)
            for fault in self.faults:
                if fault.action == action and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    aws: FaultyAws
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        target = self.headers.get("X-Amz-Target", "")
        action = target.rpartition(".")[2] or parse_qs(body.decode())["Action"][0]
        fault = self.aws.fault(action)
        if fault is not None and not fault.lost and not fault.doubled and fault.until is None:
            self._answer(fault.status, _error(fault.code, json_=bool(target)))
            return
        status, answer = self._carry_out(action, body)
        if fault is not None and fault.doubled:
            self._forward(body)
        if fault is not None and fault.until is not None:
            fault.until.wait(30)
        if fault is not None and fault.lost:
            self.close_connection = True
            return
        self._answer(status, answer)

    def _carry_out(self, action: str, body: bytes) -> tuple[int, bytes]:
        if action == "GetProducts":
            return 200, self._products(json.loads(body))
        if action != "RunInstances":
            return self._forward(body)
        fields = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        token, request = fields.pop("ClientToken"), json.dumps(fields, sort_keys=True)
        with self.aws.lock:
            if token in self.aws.launched:
                before, answer = self.aws.launched[token]
                return (200, answer) if before == request else (400, _error("IdempotentParameterMismatch"))
            if self.aws.capacity is not None and int(fields["MinCount"]) > self.aws.capacity:
                return 400, _error("InsufficientInstanceCapacity")
            # moto launches MinCount; EC2 as many as it has, up to MaxCount.
            most = min(int(fields["MaxCount"]), self.aws.capacity or int(fields["MaxCount"]))
            body = re.sub(rb"MinCount=\d+", b"MinCount=%d" % most, body)
            status, answer = self._forward(body)
            if status == 200:
                self.aws.launched[token] = (request, answer)
            return status, answer

    def _forward(self, body: bytes) -> tuple[int, bytes]:
        if self.aws.page_size is not None:
            body = re.sub(rb"MaxResults=\d+", b"MaxResults=%d" % self.aws.page_size, body)
        headers = {
            name: self.headers[name]
            for name in ("Authorization", "Content-Type", "X-Amz-Date")
            if self.headers[name]
        }
        response = self.aws.forward.post("/", content=body, headers=headers)
        return response.status_code, response.content

    def _products(self, request: Any) -> bytes:
        wanted = {one["Field"]: one["Value"] for one in request["Filters"]}
        price = self.aws.prices.get(wanted["instanceType"])
        dimension = {"unit": "Hrs", "pricePerUnit": price}
        product = {"terms": {"OnDemand": {"T": {"priceDimensions": {"D": dimension}}}}}
        found = [] if price is None else [json.dumps(product)]
        return json.dumps({"FormatVersion": "aws_v1", "PriceList": found}).encode()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Be quiet."""


def _error(code: str, *, json_: bool = False) -> bytes:
    if json_:
        return json.dumps({"__type": code, "message": "injected"}).encode()
    text = (
        f"<Response><Errors><Error><Code>{code}</Code><Message>injected</Message></Error></Errors></Response>"
    )
    return text.encode()
