"""The manifests of `deploy/kubernetes`, applied to a real API server: the provider runs with exactly their rights."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.engines.kubernetes_cluster import Kubernetes
from headway.contract.values.markets import Market
from service.adapters.providers.kubernetes import KubernetesProvider
from service.adapters.providers.kubernetes_client import read_service_account
from service.adapters.providers.kubernetes_settings import read_kubernetes_settings
from service.domain.rental.machines import Machine, MachineState
from service.domain.shared.errors import HeadwayServiceError, ProviderRefused
from service.usecases.ports.rental import JoinBy
from tests.conformance.conftest import AGENT
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,  # starts a control plane
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        shutil.which("kubectl") is None, reason="NO KUBECTL: THE MANIFESTS ARE NOT APPLIED (install kubectl)"
    ),
]

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
SERVICE, PODS = "headway", "headway-pods"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLE = f"{RBAC}/namespaces/{PODS}/roles/headway-pods"
CLUSTER_ROLE = f"{RBAC}/clusterroles/headway-offers"
NUMBERS = itertools.count()


def apply(kubernetes: Kubernetes, overlay: str, folder: Path) -> None:
    """Apply an overlay with the example's secrets, as its README says."""
    jobs = f"/apis/batch/v1/namespaces/{SERVICE}/jobs"
    if kubernetes.ask("GET", jobs)["items"]:  # a Job cannot be changed
        kubernetes.ask("DELETE", f"{jobs}/headway-migrate?propagationPolicy=Foreground")
        kubernetes.until(lambda: not kubernetes.ask("GET", jobs)["items"], "the end of the migrations")
    copy = folder / overlay
    shutil.copytree(FOLDER, copy)
    for example in (copy / "overlays" / overlay).glob("*.env.example"):
        shutil.copy(example, example.with_suffix(""))
    build = ["kubectl", "kustomize", str(copy / "overlays" / overlay)]
    built = subprocess.run(build, check=True, capture_output=True, text=True).stdout
    # The only difference of this old server: the version of disruption budgets.
    known = built.replace("apiVersion: policy/v1\n", "apiVersion: policy/v1beta1\n")
    command = ["kubectl", "--kubeconfig", str(kubernetes.kubeconfig), "apply", "-f", "-"]
    done = subprocess.run(command, input=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def applied(kubernetes: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Kubernetes:
    kubernetes.start_node("big", extra={"cpu": "16"})
    apply(kubernetes, "pods", tmp_path_factory.mktemp("pods"))
    return kubernetes


def provider_as(applied: Kubernetes, account: str, folder: Path) -> KubernetesProvider:
    """Return a provider with a service account and the settings of the overlay, as in its pod."""
    (folder / "token").write_text(applied.token(account, SERVICE), encoding="utf-8")
    (folder / "ca.crt").write_bytes(applied.authority.read_bytes())
    (folder / "namespace").write_text(SERVICE, encoding="utf-8")
    configs = applied.ask("GET", f"/api/v1/namespaces/{SERVICE}/configmaps")["items"]
    (settings,) = (one["data"] for one in configs if one["metadata"]["name"].startswith("headway-pods-"))
    (template,) = (one["data"] for one in configs if one["metadata"]["name"].startswith("headway-pod-"))
    (folder / "pod.yaml").write_text(template["pod.yaml"], encoding="utf-8")
    changed = {
        "HEADWAY_KUBERNETES_IMAGE": AGENT,
        "HEADWAY_KUBERNETES_POD": str(folder / "pod.yaml"),
        "HEADWAY_KUBERNETES_GRACE_S": "5",
    }
    access = read_service_account("127.0.0.1", str(applied.port), folder)
    return KubernetesProvider(read_kubernetes_settings(settings | changed), access, lambda: datetime.now(UTC))


@pytest.fixture(scope="module")
def provider(applied: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> KubernetesProvider:
    """The scheduler's provider."""
    return provider_as(applied, "headway-scheduler", tmp_path_factory.mktemp("account"))


def machine() -> Machine:
    now = datetime.now(UTC)
    return Machine(
        id=f"r{next(NUMBERS)}x{os.getpid()}",
        provider="kubernetes",
        region=PODS,
        instance_type="cpu:1",
        device_kind="cpu",
        slots=1,
        market=Market.SPOT,
        usd_per_h=0.02,
        state=MachineState.WANTED,
        reason="WORTH_IT",
        message="",
        requested_at=now,
        state_since=now,
    )


async def whole_life(provider: KubernetesProvider) -> None:
    """Everything that the service asks a provider for, in its order. Raises: what a step does, with the step as a note."""
    one, step = machine(), "offers"
    join = JoinBy(url="http://127.0.0.1:9", token="secret", node_name=f"rented-{one.id}")
    try:
        assert await provider.offers()
        step = "launch"
        found = await provider.launch(one, join)
        step = "list"
        assert [one.external_id for one in await provider.list() if not one.ended] == [found.external_id]
        step = "terminate"
        await provider.terminate(found.external_id)
    except HeadwayServiceError as error:
        error.add_note(step)
        raise

    async def ended() -> bool:
        return all(one.ended for one in await provider.list())

    await until(ended)


def may(kubernetes: Kubernetes, verb: str, resource: str, namespace: str, account: str) -> bool:
    attributes = {"verb": verb, "resource": resource, "namespace": namespace}
    spec = {"user": f"system:serviceaccount:{SERVICE}:{account}", "resourceAttributes": attributes}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(kubernetes.ask("POST", path, body)["status"]["allowed"])


@contextmanager
def without(kubernetes: Kubernetes, role: str, resource: str, verb: str) -> Iterator[None]:
    """Take a verb on a resource from a role, and give it back."""
    before = kubernetes.ask("GET", role)["rules"]
    each = [(one, name, each) for one in before for name in one["resources"] for each in one["verbs"]]
    rules = [
        {"apiGroups": one["apiGroups"], "resources": [name], "verbs": [asked]}
        for one, name, asked in each
        if (name, asked) != (resource, verb)
    ]
    assert len(rules) == len(each) - 1
    namespace = PODS if role == ROLE else ""
    for changed, allowed in ((rules, False), (before, True)):
        kubernetes.ask("PUT", role, kubernetes.ask("GET", role) | {"rules": changed})
        kubernetes.until(
            lambda allowed=allowed: (
                may(kubernetes, verb, resource, namespace, "headway-scheduler") is allowed
            ),
            f"{verb} {resource}",
        )
        if not allowed:
            yield


def clear(kubernetes: Kubernetes) -> None:
    kubernetes.ask("DELETE", f"/api/v1/namespaces/{PODS}/pods?gracePeriodSeconds=0")


async def test_overlay_makes_pods_of_the_service_with_its_accounts(applied: Kubernetes) -> None:
    def pods() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for one in applied.ask("GET", f"/api/v1/namespaces/{SERVICE}/pods")["items"]:
            name = one["metadata"]["labels"].get("app.kubernetes.io/name", "headway-migrate")
            found.setdefault(name, set()).add(one["spec"]["serviceAccountName"])
        return found

    await until(lambda: len(pods()) == 3)
    assert pods() == {
        "headway-api": {"headway-api"},
        "headway-scheduler": {"headway-scheduler"},
        "headway-migrate": {"default"},
    }


async def test_provider_lives_with_the_rights_of_the_overlay(
    applied: Kubernetes, provider: KubernetesProvider
) -> None:
    await whole_life(provider)
    assert not may(applied, "list", "secrets", SERVICE, "headway-scheduler")
    assert not may(applied, "create", "pods", SERVICE, "headway-scheduler")


async def test_api_sees_offers_and_starts_nothing(applied: Kubernetes, tmp_path: Path) -> None:
    of_api, one = provider_as(applied, "headway-api", tmp_path), machine()
    assert await of_api.offers()
    with pytest.raises(ProviderRefused, match="apply the roles"):
        await of_api.launch(one, JoinBy(url="http://127.0.0.1:9", token="secret", node_name="n"))


@pytest.mark.parametrize(
    ("role", "resource", "verb", "step"),
    [
        (ROLE, "pods", "create", "launch"),
        (ROLE, "pods", "get", "launch"),
        (ROLE, "pods", "delete", "terminate"),
        (CLUSTER_ROLE, "nodes", "list", "offers"),
        (CLUSTER_ROLE, "pods", "list", "offers"),
    ],
)
async def test_provider_with_a_verb_less_fails_with_the_remedy(
    applied: Kubernetes, provider: KubernetesProvider, role: str, resource: str, verb: str, step: str
) -> None:
    with (
        without(applied, role, resource, verb),
        pytest.raises(HeadwayServiceError, match="apply the roles") as failed,
    ):
        await whole_life(provider)
    assert failed.value.__notes__ == [step]
    clear(applied)
    await until(lambda: not applied.ask("GET", f"/api/v1/namespaces/{PODS}/pods")["items"])


async def test_rights_are_those_that_were_taken_away_one_by_one(applied: Kubernetes) -> None:
    def verbs(role: str) -> set[tuple[str, str]]:
        return {
            (name, verb)
            for one in applied.ask("GET", role)["rules"]
            for name in one["resources"]
            for verb in one["verbs"]
        }

    assert verbs(ROLE) == {("pods", "create"), ("pods", "get"), ("pods", "delete")}
    assert verbs(CLUSTER_ROLE) == {("nodes", "list"), ("pods", "list")}


def test_overlay_for_nodes_of_headway_is_taken(kubernetes: Kubernetes, tmp_path: Path) -> None:
    apply(kubernetes, "hosts", tmp_path)
    (agents,) = kubernetes.ask("GET", f"/apis/apps/v1/namespaces/{SERVICE}/daemonsets")["items"]
    assert agents["metadata"]["name"] == "headway-agent"
