"""Events that only Kubernetes knows happen to pods of a real control plane."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from benchmarks.engines.kubernetes_cluster import LOW, NAMESPACE, Kubernetes
from headway.contract.values.markets import Market
from service.adapters.providers import kubernetes_client
from service.adapters.providers.kubernetes import KubernetesProvider
from service.domain.rental.machines import Found, Machine, MachineState
from service.domain.shared.errors import NoCapacity, ProviderRefused, Unavailable
from service.usecases.ports.rental import JoinBy
from tests.conformance.conftest import AGENT
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NUMBERS = itertools.count()
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class World:
    """A provider over the real control plane, and its leases."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self.kubernetes = kubernetes
        self.provider = self.make_provider()

    def make_provider(self, **env: str) -> KubernetesProvider:
        given = {
            "KUBECONFIG": str(self.kubernetes.kubeconfig),
            "HEADWAY_CLUSTER": "own",
            "HEADWAY_KUBERNETES_IMAGE": AGENT,
            "HEADWAY_KUBERNETES_SPOT": "cpu=0.05,a100=2",
            "HEADWAY_KUBERNETES_SPOT_CLASS": LOW,
            "HEADWAY_KUBERNETES_GRACE_S": "5",
            "HEADWAY_KUBERNETES_WAIT_S": "3",
        }
        return KubernetesProvider.from_env(given | env, lambda: datetime.now(UTC))

    def machine(self, **changes: object) -> Machine:
        now = datetime.now(UTC)
        fields: dict[str, object] = {
            "id": f"m{next(NUMBERS)}x{os.getpid()}",
            "provider": "kubernetes",
            "region": NAMESPACE,
            "instance_type": f"cpu:{self.kubernetes.cpus}",
            "device_kind": "cpu",
            "slots": self.kubernetes.cpus,
            "market": Market.SPOT,
            "usd_per_h": 0.1,
            "state": MachineState.WANTED,
            "reason": "WORTH_IT",
            "message": "",
            "requested_at": now,
            "state_since": now,
            **changes,
        }
        return Machine(**fields)  # type: ignore[arg-type]

    async def launch(self, machine: Machine, provider: KubernetesProvider | None = None) -> Found:
        join = JoinBy(url="http://127.0.0.1:9", token="secret", node_name=f"rented-{machine.id}")
        return await (provider or self.provider).launch(machine, join)

    async def listed(self, machine: Machine) -> list[Found]:
        return [one for one in await self.provider.list() if one.machine_id == machine.id]

    async def ended(self, machine: Machine, within_s: float = 60.0) -> Found:
        """The machine, once it is listed as ended."""

        async def is_so() -> bool:
            return [one.ended for one in await self.listed(machine)] == [True]

        await until(is_so, within_s)
        (found,) = await self.listed(machine)
        return found

    def names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.kubernetes.pods()]


@pytest.fixture
def world(kubernetes: Kubernetes) -> Iterator[World]:
    yield World(kubernetes)
    kubernetes.clear()


async def test_pod_requests_its_slots_and_carries_class_queue_rack_and_template(
    world: World, tmp_path: Path
) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text(
        "nodeSelector: {kubernetes.io/hostname: n2}\ncontainers: [{env: [{name: SITE, value: hall}]}]\n",
        encoding="utf-8",
    )
    provider = world.make_provider(
        HEADWAY_KUBERNETES_QUEUE="team",
        HEADWAY_KUBERNETES_SLOT="cpu=1,memory=100Mi",
        HEADWAY_KUBERNETES_TOPOLOGY="rack=site/rack,zone=topology.kubernetes.io/zone",
        HEADWAY_KUBERNETES_POD=str(template),
    )
    (offer,) = await provider.offers()
    assert (offer.zone, offer.instance_type, offer.spot_usd_per_h, offer.on_demand_usd_per_h) == (
        "a/r-n2",
        "cpu:2",
        0.1,
        None,
    )
    found = await world.launch(world.machine(zone=offer.zone), provider)
    pod = world.kubernetes.pod(found.external_id)
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert (pod["spec"]["nodeName"], pod["spec"]["priorityClassName"]) == ("n2", LOW)
    (agent,) = pod["spec"]["containers"]
    assert agent["resources"]["requests"] == {"cpu": "2", "memory": str(200 << 20)}
    env = {one["name"]: one.get("value") for one in agent["env"]}
    assert (env["HEADWAY_LABELS"], env["SITE"]) == ("zone=a,rack=r-n2", "hall")


async def test_offers_leave_out_what_others_request_and_nodes_that_take_no_pods(world: World) -> None:
    world.kubernetes.occupy("n1")
    await until(lambda: all(pod["spec"].get("nodeName") for pod in world.kubernetes.pods()))
    world.kubernetes.start_node(
        "gpu",
        extra={"nvidia.com/gpu": "4", "cpu": "64"},
        labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
    )
    try:

        async def types() -> list[tuple[str, str]]:
            return [(one.instance_type, one.device_kind) for one in await world.provider.offers()]

        async def all_seen() -> bool:
            return await types() == [("a100:4", "a100"), ("cpu:2", "cpu")]

        await until(all_seen)
        found = await world.launch(world.machine(instance_type="a100:3", device_kind="a100", slots=3))
        assert world.kubernetes.pod(found.external_id)["spec"]["nodeName"] == "gpu"
        assert await types() == [("a100:4", "a100"), ("cpu:2", "cpu")], "its own pods do not count"
        world.kubernetes.patch("/api/v1/nodes/n2", {"spec": {"unschedulable": True}})

        async def cordoned() -> bool:
            return await types() == [("a100:4", "a100")]

        await until(cordoned)
    finally:
        world.kubernetes.patch("/api/v1/nodes/n2", {"spec": {"unschedulable": False}})
        world.kubernetes.clear()
        world.kubernetes.lose_node("gpu")


async def test_preempted_pod_ends_and_its_node_goes_to_the_higher_class(world: World) -> None:
    machines = [world.machine() for _ in range(world.kubernetes.nodes)]
    for machine in machines:
        await world.launch(machine)
    others = [world.kubernetes.occupy() for _ in machines]
    for machine in machines:
        assert (await world.ended(machine)).billed_to is not None
    await until(lambda: all(world.kubernetes.pod(one)["status"]["phase"] == "Running" for one in others))


async def test_evicted_pod_is_listed_as_present_until_it_has_ended(world: World) -> None:
    machine = world.machine()
    found = await world.launch(machine)
    world.kubernetes.evict(found.external_id)
    ended = await world.ended(machine)
    assert ended.external_id == found.external_id
    assert ended.billed_from == found.billed_from
    assert "deleted" in ended.message or "exit code" in ended.message


async def test_pod_evicted_between_two_lists_was_seen_by_the_launch_and_is_listed_as_ended(
    world: World,
) -> None:
    machine = world.machine()
    found = await world.launch(machine)
    world.kubernetes.delete(found.external_id, grace_s=0)
    await until(lambda: found.external_id not in world.names())
    (listed,) = await world.listed(machine)
    assert listed.ended


async def test_pod_that_fails_is_listed_as_ended_with_its_exit_code(world: World) -> None:
    world.kubernetes.images["broken"] = ("sh", "-c", "exit 7")
    machine = world.machine()
    await world.launch(machine, world.make_provider(HEADWAY_KUBERNETES_IMAGE="broken"))
    ended = await world.ended(machine)
    assert "exit code 7" in ended.message
    assert ended.billed_to is not None


async def test_pod_of_a_deleted_node_ends_once_kubernetes_has_removed_it(world: World) -> None:
    machine = world.machine()
    found = await world.launch(machine)
    node = world.kubernetes.pod(found.external_id)["spec"]["nodeName"]
    world.kubernetes.lose_node(node)
    try:
        assert [one.ended for one in await world.listed(machine)] == [False], "Kubernetes has not said so"
        await world.ended(machine, within_s=150)
    finally:
        world.kubernetes.start_node(node)


async def test_pod_of_an_unreachable_node_is_present_after_its_deletion_until_its_node_is_deleted(
    world: World,
) -> None:
    """Its processes may run on, so nothing but Kubernetes may say that it has ended."""
    machine = world.machine()
    found = await world.launch(machine)
    node = world.kubernetes.pod(found.external_id)["spec"]["nodeName"]
    world.kubernetes.cut_node(node)
    try:
        await world.provider.terminate(found.external_id)

        def unreachable() -> bool:
            taints = world.kubernetes.ask("GET", f"/api/v1/nodes/{node}")["spec"].get("taints", [])
            return "node.kubernetes.io/unreachable" in {one["key"] for one in taints}

        await until(unreachable, 60)
        assert "deletionTimestamp" in world.kubernetes.pod(found.external_id)["metadata"]
        assert [one.ended for one in await world.listed(machine)] == [False]
        world.kubernetes.lose_node(node)
        ended = await world.ended(machine, within_s=150)
        assert ended.billed_to is not None
    finally:
        world.kubernetes.start_node(node)


async def test_killed_server_makes_every_outcome_unknown_and_loses_nothing(world: World) -> None:
    machine = world.machine()
    found = await world.launch(machine)
    world.kubernetes.kill_server()
    try:
        with pytest.raises(Unavailable):
            await world.provider.list()
        with pytest.raises(Unavailable):
            await world.provider.offers()
        with pytest.raises(Unavailable):
            await world.launch(world.machine())
        with pytest.raises(Unavailable):
            await world.provider.terminate(found.external_id)
    finally:
        world.kubernetes.start_server()
    assert [one.ended for one in await world.listed(machine)] == [False]
    assert world.names() == [found.external_id]


async def test_pod_pending_for_ever_is_no_capacity_with_the_schedulers_sentence_and_leaves_no_pod(
    world: World,
) -> None:
    with pytest.raises(NoCapacity, match="nodes are available"):
        await world.launch(world.machine(instance_type="cpu:64"))
    assert world.names() == []


async def test_used_up_quota_is_no_capacity(world: World) -> None:
    quotas = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    world.kubernetes.ask("POST", quotas, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})
    try:
        await until(
            lambda: "pods" in world.kubernetes.ask("GET", f"{quotas}/few").get("status", {}).get("hard", {})
        )
        await world.launch(world.machine())
        with pytest.raises(NoCapacity, match="ResourceQuota"):
            await world.launch(world.machine())
    finally:
        world.kubernetes.ask("DELETE", f"{quotas}/few")
    assert len(world.names()) == 1


async def test_image_that_cannot_be_pulled_is_refused_and_leaves_no_pod(world: World) -> None:
    with pytest.raises(ProviderRefused, match=r"ImagePullBackOff.*HEADWAY_KUBERNETES_IMAGE"):
        await world.launch(world.machine(), world.make_provider(HEADWAY_KUBERNETES_IMAGE="absent:1"))
    await until(lambda: world.names() == [])


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("HEADWAY_KUBERNETES_SPOT_CLASS", "no-such-class", "no PriorityClass"),
        ("HEADWAY_KUBERNETES_SLOT", "cpu=1,no-domain=1", "422"),
    ],
)
async def test_pod_that_kubernetes_refuses_ends_the_lease_with_its_sentence(
    world: World, setting: str, value: str, said: str
) -> None:
    with pytest.raises(ProviderRefused, match=said):
        await world.launch(world.machine(), world.make_provider(**{setting: value}))


async def test_wrong_token_is_unknown_and_names_the_remedy(world: World, tmp_path: Path) -> None:
    world.kubernetes.write_kubeconfig(tmp_path / "wrong", "nobody")
    with pytest.raises(Unavailable, match="renew the token"):
        await world.make_provider(KUBECONFIG=str(tmp_path / "wrong")).list()


async def test_account_without_roles_is_refused_at_a_launch(world: World, tmp_path: Path) -> None:
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = world.kubernetes.ask("POST", accounts, request)["status"]["token"]
    world.kubernetes.write_kubeconfig(tmp_path / "bare", token)
    provider = world.make_provider(KUBECONFIG=str(tmp_path / "bare"))
    with pytest.raises(ProviderRefused, match="apply the roles"):
        await world.launch(world.machine(), provider)
    with pytest.raises(Unavailable, match="apply the roles"):
        await provider.list()


async def test_launch_whose_answer_was_lost_gives_one_pod(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has created the pod, and its answer never arrives."""
    machine = world.machine()
    with monkeypatch.context() as patched:
        lose_answers(patched, "POST")
        with pytest.raises(Unavailable):
            await world.launch(machine)
    found = await world.launch(machine)
    assert world.names() == [found.external_id]


async def test_many_launches_of_one_lease_at_once_give_one_pod(world: World) -> None:
    machine = world.machine()
    found = await asyncio.gather(*(world.launch(machine, world.make_provider()) for _ in range(8)))
    assert {one.external_id for one in found} == set(world.names())
    assert len(world.names()) == 1


async def test_pod_of_somebody_else_with_the_leases_name_is_refused_and_lives(world: World) -> None:
    machine = world.machine()
    found = await world.launch(machine)
    world.kubernetes.patch(
        f"{PODS}/{found.external_id}", {"metadata": {"labels": {"headway/machine": "other"}}}
    )
    with pytest.raises(ProviderRefused, match="delete it"):
        await world.launch(machine)
    assert world.names() == [found.external_id]


def lose_answers(patched: pytest.MonkeyPatch, method: str) -> None:
    """Let requests of a method reach the server, and their answers not the provider."""

    class Losing(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            response = await super().handle_async_request(request)
            if request.method == method:
                await response.aread()
                raise httpx.ReadTimeout("lost", request=request)
            return response

    @asynccontextmanager
    async def connection(access: kubernetes_client.Access) -> AsyncIterator[kubernetes_client.Api]:
        transport = Losing(verify=access.verify)
        async with httpx.AsyncClient(base_url=access.server, transport=transport) as client:
            yield kubernetes_client.Api(client, access)

    patched.setattr("service.adapters.providers.kubernetes.connection", connection)
