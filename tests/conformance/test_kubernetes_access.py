"""Credentials for a real API server of Kubernetes, and answers that it gives rarely."""

from __future__ import annotations

import base64
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from benchmarks.engines.kubernetes_cluster import ADMIN, NAMESPACE, Kubernetes
from benchmarks.engines.kubernetes_faults import Fault, FaultyServer, faulty_server
from headway.contract.values.markets import Market
from service.adapters.providers import kubernetes_client
from service.adapters.providers.kubernetes import KubernetesProvider
from service.adapters.providers.kubernetes_client import Access, Api, read_kubeconfig, read_service_account
from service.adapters.providers.kubernetes_settings import read_kubernetes_settings
from service.domain.rental.machines import Machine, MachineState
from service.domain.shared.errors import Unavailable
from service.usecases.ports.rental import JoinBy
from tests.conformance.conftest import AGENT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # starts a control plane

NUMBERS = itertools.count()
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def provider_of(access: Access) -> KubernetesProvider:
    settings = {
        "HEADWAY_KUBERNETES_IMAGE": AGENT,
        "HEADWAY_KUBERNETES_NAMESPACE": NAMESPACE,
        "HEADWAY_KUBERNETES_SPOT": "cpu=0.05",
        "HEADWAY_KUBERNETES_GRACE_S": "5",
        "HEADWAY_CLUSTER": "access",
    }
    return KubernetesProvider(read_kubernetes_settings(settings), access, lambda: datetime.now(UTC))


def machine() -> Machine:
    now = datetime.now(UTC)
    return Machine(
        id=f"a{next(NUMBERS)}x{os.getpid()}",
        provider="kubernetes",
        region=NAMESPACE,
        instance_type="cpu:1",
        device_kind="cpu",
        slots=1,
        market=Market.SPOT,
        usd_per_h=0.05,
        state=MachineState.WANTED,
        reason="WORTH_IT",
        message="",
        requested_at=now,
        state_since=now,
    )


def join(one: Machine) -> JoinBy:
    return JoinBy(url="http://127.0.0.1:9", token="secret", node_name=f"rented-{one.id}")


@pytest.fixture
def account(kubernetes: Kubernetes, tmp_path: Path) -> Iterator[Path]:
    """Folder of a service account that may list nodes and pods, as a pod has it."""
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    view = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": NAMESPACE}
    kubernetes.ask("POST", roles, {"metadata": {"name": "tried"}, "roleRef": view, "subjects": [subject]})
    (tmp_path / "token").write_text(kubernetes.token("default") + "\n", encoding="utf-8")
    (tmp_path / "ca.crt").write_bytes(kubernetes.authority.read_bytes())
    (tmp_path / "namespace").write_text(NAMESPACE, encoding="utf-8")
    yield tmp_path
    kubernetes.ask("DELETE", f"{roles}/tried")


@pytest.fixture
def faulty(kubernetes: Kubernetes) -> Iterator[FaultyServer]:
    """The API server behind one that answers as the test says."""
    with faulty_server(kubernetes.url, lambda _method, _path: None) as server:
        yield server
    kubernetes.clear()


def behind(faulty: FaultyServer, kubernetes: Kubernetes, folder: Path) -> KubernetesProvider:
    kubernetes.write_kubeconfig(folder / "faulty", ADMIN, faulty.url)
    return provider_of(read_kubeconfig(folder / "faulty"))


def once(fault: Fault, method: str) -> Callable[[str, str], Fault | None]:
    """The first request of a method meets a fault."""
    left = [fault]
    return lambda asked, _path: left.pop() if asked == method and left else None


async def test_pods_token_that_kubernetes_replaces_is_read_anew(
    kubernetes: Kubernetes, account: Path
) -> None:
    access = read_service_account("127.0.0.1", str(kubernetes.port), account)
    provider = provider_of(access)
    assert access.namespace == NAMESPACE
    assert await provider.offers()
    token = account / "token"
    token.write_text("expired", encoding="utf-8")
    with pytest.raises(Unavailable, match="renew the token"):
        await provider.offers()
    token.unlink()
    with pytest.raises(Unavailable, match="mount it again"):
        await provider.list()
    token.write_text(kubernetes.token("default"), encoding="utf-8")
    assert await provider.offers()
    assert await provider.list() == []


async def test_server_with_another_authority_is_not_talked_to(kubernetes: Kubernetes, account: Path) -> None:
    (account / "ca.crt").write_bytes((kubernetes.folder / "client-ca.crt").read_bytes())
    access = read_service_account("127.0.0.1", str(kubernetes.port), account)
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await provider_of(access).list()


@pytest.mark.parametrize("inline", [True, False], ids=["data", "files"])
async def test_client_certificate_of_a_kubeconfig_is_an_access(
    kubernetes: Kubernetes, tmp_path: Path, inline: bool
) -> None:
    certificate, key = kubernetes.write_certificate("operator", "system:masters")

    def field(name: str, path: Path) -> dict[str, str]:
        data = base64.b64encode(path.read_bytes()).decode("ascii")
        return {f"{name}-data": data} if inline else {name: str(path)}

    config: dict[str, Any] = {
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": kubernetes.url,
                    **field("certificate-authority", kubernetes.authority),
                },
            }
        ],
        "users": [{"name": "u", "user": field("client-certificate", certificate) | field("client-key", key)}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config), encoding="utf-8")
    provider = provider_of(read_kubeconfig(tmp_path / "config"))
    assert await provider.offers()
    assert await provider.list() == []


async def test_certificate_without_rights_is_refused_with_the_remedy(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    certificate, key = kubernetes.write_certificate("guest", "nobody")
    kubernetes.write_kubeconfig(tmp_path / "config", "")
    config = yaml.safe_load((tmp_path / "config").read_text(encoding="utf-8"))
    config["users"][0]["user"] = {"client-certificate": str(certificate), "client-key": str(key)}
    (tmp_path / "config").write_text(yaml.safe_dump(config), encoding="utf-8")
    with pytest.raises(Unavailable, match=r'User "guest" cannot list.*apply the roles'):
        await provider_of(read_kubeconfig(tmp_path / "config")).list()


async def test_list_that_takes_longer_than_the_server_remembers_is_unknown(
    kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is compacted between two pages, so a real server answers 410."""
    provider = provider_of(read_kubeconfig(kubernetes.kubeconfig))
    for _ in range(2):
        one = machine()
        await provider.launch(one, join(one))
    asked: list[str] = []

    class Compacting(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if "continue" in request.url.params:
                kubernetes.patch(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": {"a": "b"}}})
                kubernetes.compact()
            response = await super().handle_async_request(request)
            asked.append(str(response.status_code))
            return response

    @asynccontextmanager
    async def connection(access: Access) -> AsyncIterator[Api]:
        transport = Compacting(verify=access.verify)
        async with httpx.AsyncClient(base_url=access.server, transport=transport) as client:
            yield Api(client, access)

    with monkeypatch.context() as patched:
        patched.setattr(kubernetes_client, "_PAGE", 1)
        patched.setattr("service.adapters.providers.kubernetes.connection", connection)
        with pytest.raises(Unavailable, match="longer than the server keeps"):
            await provider.list()
    assert asked == ["200", "410"]
    assert [one.ended for one in await provider.list()] == [False, False]
    kubernetes.clear()


async def test_limited_request_is_repeated_after_what_the_server_asks_for(
    faulty: FaultyServer, kubernetes: Kubernetes, tmp_path: Path
) -> None:
    provider = behind(faulty, kubernetes, tmp_path)
    faulty.choose = once(Fault.LIMITED, "POST")
    one = machine()
    found = await provider.launch(one, join(one))
    assert [request for request in faulty.requests if request.startswith("POST")] == [f"POST {PODS}"] * 2
    assert [pod["metadata"]["name"] for pod in kubernetes.pods()] == [found.external_id]


async def test_limit_that_lasts_is_passed_on_with_its_time(
    faulty: FaultyServer, kubernetes: Kubernetes, tmp_path: Path
) -> None:
    provider = behind(faulty, kubernetes, tmp_path)
    faulty.retry_after_s = 30
    faulty.choose = lambda _method, _path: Fault.LIMITED
    with pytest.raises(Unavailable, match="limits requests") as refused:
        await provider.list()
    assert refused.value.retry_after_s == 30.0
    assert faulty.requests == [f"GET {PODS}"]


@pytest.mark.parametrize("fault", [one for one in Fault if one is not Fault.LIMITED])
async def test_failed_answer_ends_no_machine_and_a_repeated_launch_gives_one_pod(
    faulty: FaultyServer, kubernetes: Kubernetes, tmp_path: Path, fault: Fault
) -> None:
    provider = behind(faulty, kubernetes, tmp_path)
    one = machine()
    faulty.choose = once(fault, "POST")
    with pytest.raises(Unavailable):
        await provider.launch(one, join(one))
    found = await provider.launch(one, join(one))
    faulty.choose = once(fault, "GET")
    with pytest.raises(Unavailable):
        await provider.list()
    assert [(one.external_id, one.ended) for one in await provider.list()] == [(found.external_id, False)]
    faulty.choose = once(fault, "DELETE")
    with pytest.raises(Unavailable):
        await provider.terminate(found.external_id)
    await provider.terminate(found.external_id)
    assert len(kubernetes.pods()) <= 1
