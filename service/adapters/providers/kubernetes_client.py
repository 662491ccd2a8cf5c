"""API of Kubernetes over httpx: credentials, requests, and the meaning of its errors.

The official client is synchronous and generated for the whole API. This provider sends five kinds of requests.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from service.domain.shared.errors import HeadwayServiceError, NoCapacity, ProviderRefused, Unavailable
from service.environment import SettingsError

_POD_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Credentials that Kubernetes mounts into every pod with a service account."""
_TIMEOUT = httpx.Timeout(20.0, connect=5.0)
_LONGEST_RETRY_S = 5.0
"""Longest `Retry-After` that is waited for. The renter itself repeats requests, so a longer one is reported."""
_PAGE = 500
_KUBECONFIG = "https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/"
_REMEDIES = {
    401: "its credentials have expired or are not known there; renew the token or the kubeconfig",
    403: "its account may not; apply the roles of docs/guides/kubernetes.md",
    404: "the namespace does not exist there; create it, or correct HEADWAY_KUBERNETES_NAMESPACE",
    410: "the list took longer than the server keeps its state; the service tries again",
    422: "the pod is not valid there; correct HEADWAY_KUBERNETES_POD and the settings beside it",
    429: "the server limits requests; the service tries again",
}


@dataclass(frozen=True, slots=True)
class Access:
    """Address of an API server, with the credentials for it."""

    server: str
    verify: ssl.SSLContext
    namespace: str = "default"
    token: str = ""
    token_file: Path | None = None
    """File with the token, which Kubernetes renews; it is read for each request."""

    def headers(self) -> dict[str, str]:
        """Return the headers that authenticate a request. Raises: Unavailable, if the token's file cannot be read."""
        try:
            token = (
                self.token if self.token_file is None else self.token_file.read_text(encoding="utf-8").strip()
            )
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(f"The token of Kubernetes cannot be read ({error}); mount it again.") from error
        return {"Authorization": f"Bearer {token}"} if token else {}


class ApiFailed(Exception):
    """Answer of the API server that is an error."""

    def __init__(self, response: httpx.Response) -> None:
        try:
            status = response.json()
        except ValueError:
            status = {}
        if not isinstance(status, dict):
            status = {}
        self.code = response.status_code
        self.reason = str(status.get("reason", ""))
        self.message = str(status.get("message", "")) or response.text[:200].strip() or "no message"
        self.retry_after_s = _seconds(response.headers.get("Retry-After", ""))
        super().__init__(f"{self.code} {self.reason}: {self.message}")

    def meaning(self, what: str, *, launching: bool = False) -> HeadwayServiceError:
        """Return the service's error. Only a launch can be refused or lack capacity; everything else is repeated."""
        said = f"Kubernetes did not {what}: {self.message} ({self.code} {self.reason}"
        remedy = _REMEDIES.get(self.code)
        if launching and self.code == 403 and "exceeded quota" in self.message:
            return NoCapacity(
                f"{said}); the namespace's ResourceQuota is used up: raise it, or end other pods."
            )
        if launching and self.code in {400, 403, 404, 405, 413, 422}:
            return ProviderRefused(f"{said}); {remedy or 'correct the settings of HEADWAY_KUBERNETES_*'}.")
        return Unavailable(f"{said}); {remedy or 'the service tries again'}.", self.retry_after_s or 2.0)


class Api:
    """Requests over one connection to an API server."""

    def __init__(self, client: httpx.AsyncClient, access: Access) -> None:
        self._client = client
        self._access = access

    async def ask(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: object | None = None
    ) -> dict[str, Any]:
        """Return the object that the server answers with.

        Raises:
            ApiFailed: it answered with an error.
            Unavailable: no answer, or an unreadable one; the effect is unknown.
        """
        response = await self._send(method, path, query, body)
        wait_s = _seconds(response.headers.get("Retry-After", ""))
        if response.status_code == 429 and wait_s is not None and wait_s <= _LONGEST_RETRY_S:
            await asyncio.sleep(wait_s)  # the server did not begin with the request
            response = await self._send(method, path, query, body)
        if response.status_code >= 300:
            raise ApiFailed(response)
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Unavailable(
                f"{self._access.server} did not answer {path} with an object; the outcome is unknown."
            )
        return answer

    async def list(self, path: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return all objects of a list, page by page. The pages show one moment of the server.

        Raises:
            ApiFailed: 410 if the server forgot that moment before the last page; another error.
            Unavailable: no answer.
        """
        found: list[dict[str, Any]] = []
        more = ""
        while True:
            page = {**query, "limit": str(_PAGE), **({"continue": more} if more else {})}
            answer = await self.ask("GET", path, query=page)
            found += answer.get("items") or []
            more = answer.get("metadata", {}).get("continue", "")
            if not more:
                return found

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: object | None
    ) -> httpx.Response:
        try:
            return await self._client.request(
                method, path, params=query, json=body, headers=self._access.headers()
            )
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            why = str(error) or type(error).__name__
            raise Unavailable(
                f"The API server of Kubernetes, {self._access.server}, does not answer ({why}); the service tries again."
            ) from error


@asynccontextmanager
async def connection(access: Access) -> AsyncIterator[Api]:
    """Open a connection to the API server for some requests."""
    async with httpx.AsyncClient(base_url=access.server, verify=access.verify, timeout=_TIMEOUT) as client:
        yield Api(client, access)


def find_access(env: Mapping[str, str]) -> Access:
    """Return the access of `KUBECONFIG`, of this pod's service account, or of `~/.kube/config`: the first that there is.

    Raises:
        SettingsError: there is none, or it cannot be used.
    """
    named = env.get("KUBECONFIG", "").strip()
    if named:
        return read_kubeconfig(Path(named))
    host = env.get("KUBERNETES_SERVICE_HOST", "")
    if host and (_POD_FOLDER / "token").exists():
        return read_service_account(host, env.get("KUBERNETES_SERVICE_PORT", "443"), _POD_FOLDER)
    usual = Path(env.get("HOME", "")) / ".kube" / "config"
    if usual.exists():
        return read_kubeconfig(usual)
    raise SettingsError(
        "HEADWAY_PROVIDERS names kubernetes, and there are no credentials: run the service in a pod with a service "
        "account, or set KUBECONFIG to a file."
    )


def read_service_account(host: str, port: str, folder: Path) -> Access:
    """Return the access of a pod's service account: a folder with `token`, `ca.crt` and `namespace`.

    Raises:
        SettingsError: the folder is not complete.
    """
    address = f"[{host}]" if ":" in host else host
    try:
        namespace = (folder / "namespace").read_text(encoding="utf-8").strip()
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The service account of this pod cannot be used: {error}.") from error
    return Access(f"https://{address}:{port}", context, namespace, token_file=folder / "token")


def read_kubeconfig(path: Path) -> Access:
    """Return the access of a kubeconfig's current context.

    Raises:
        SettingsError: the file cannot be read, or it needs a program for its credentials.
    """
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"]).get("user") or {}
        server = str(cluster["server"]).rstrip("/")
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"KUBECONFIG: {path} has no usable current context ({type(error).__name__}: {error}); see {_KUBECONFIG}."
        ) from error
    needs = sorted({"exec", "auth-provider", "username"} & user.keys())
    if needs:
        raise SettingsError(
            f"KUBECONFIG: the user of {path} has `{needs[0]}`, which the service does not use; make a token for a service "
            "account (docs/guides/kubernetes.md)."
        )
    try:
        verify = _verify(cluster, user, path.parent)
    except (OSError, ValueError) as error:
        raise SettingsError(f"KUBECONFIG: a certificate or key of {path} cannot be used: {error}.") from error
    token_file = path.parent / user["tokenFile"] if user.get("tokenFile") else None
    return Access(server, verify, context.get("namespace") or "default", user.get("token") or "", token_file)


def _named(config: Mapping[str, Any], group: str, name: str) -> dict[str, Any]:
    for one in config[group]:
        if one["name"] == name:
            return dict(one)
    raise KeyError(f"{group}: {name}")


def _verify(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    """Return the TLS settings of a kubeconfig. Raises: OSError, ValueError."""
    data = _decoded(cluster, "certificate-authority-data")
    file = cluster.get("certificate-authority")
    context = ssl.create_default_context(
        cafile=str(folder / file) if file and not data else None,
        cadata=data.decode("ascii") if data else None,
    )
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _decoded(user, "client-certificate-data"), _decoded(user, "client-key-data")
    if certificate and key:
        _load_pair(context, certificate, key)
    elif user.get("client-certificate") and user.get("client-key"):
        context.load_cert_chain(str(folder / user["client-certificate"]), str(folder / user["client-key"]))
    return context


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate and its key, which OpenSSL takes from files only."""
    descriptor, name = tempfile.mkstemp(prefix="headway-kubernetes-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate + b"\n" + key)
        context.load_cert_chain(name)
    finally:
        Path(name).unlink()


def _decoded(fields: Mapping[str, Any], name: str) -> bytes:
    try:
        return base64.b64decode(fields.get(name) or "", validate=True)
    except binascii.Error as error:
        raise ValueError(f"{name}: {error}") from error


def _seconds(text: str) -> float | None:
    return float(text) if text.isdecimal() else None
