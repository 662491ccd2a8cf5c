"""Pods of Kubernetes as rented machines: one pod for each lease, with an agent and its ranks.

A pod's name follows from its lease, and the API server takes a name once: a request whose answer was lost is repeated,
and finds the pod of the first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Self
from urllib.parse import quote

from headway.contract.values.markets import Market
from service.adapters.providers.kubernetes_client import Access, Api, ApiFailed, connection, find_access
from service.adapters.providers.kubernetes_nodes import Shape, shapes
from service.adapters.providers.kubernetes_pods import CLUSTER, Pod, manifest, pod_name
from service.adapters.providers.kubernetes_settings import KubernetesSettings, read_kubernetes_settings
from service.domain.rental.machines import Found, Machine
from service.domain.rental.offers import Offer
from service.domain.shared.errors import NoCapacity, ProviderRefused, Unavailable
from service.usecases.ports.rental import JoinBy, Provider

_POLL_S, _LONGEST_POLL_S = 0.25, 2.0
"""Pauses between two looks at a new pod: each doubles the last."""
_HAZARD_PER_H = 0.1
"""Expected preemptions per hour of a pod of the spot class, until this cluster's own leases have shown the rate."""
_REMEMBERED = timedelta(minutes=10)
"""Time for which an ended pod is listed. The renter lists every few seconds."""
_ABANDONED = timedelta(minutes=5)
"""Age of a pod without a node whose launch is surely over. A launch takes 90 s at most."""


class KubernetesProvider(Provider):
    """Provider of pods in one namespace of Kubernetes."""

    name = "kubernetes"

    def __init__(self, settings: KubernetesSettings, access: Access, now: Callable[[], datetime]) -> None:
        self._settings = settings
        self._access = access
        self._now = now
        self._namespace = settings.namespace or access.namespace
        self._pods = f"/api/v1/namespaces/{self._namespace}/pods"
        self._last: dict[str, Pod] = {}
        """Pods that hold a node, as they were last seen."""
        self._ended: dict[str, tuple[Found, datetime]] = {}
        """Ended machines, each with the time at which its end was seen."""

    @classmethod
    def from_env(cls, env: Mapping[str, str], now: Callable[[], datetime]) -> Self:
        return cls(read_kubernetes_settings(env), find_access(env), now)

    async def offers(self) -> Sequence[Offer]:
        settings = self._settings
        bound = "status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!="
        not_ours = f"{CLUSTER}!={settings.cluster}"
        cached = {"resourceVersion": "0"}  # from the server's memory: an offer may be some seconds old
        try:
            async with connection(self._access) as api:
                nodes = await api.list("/api/v1/nodes", cached)
                others = await api.list(
                    "/api/v1/pods", {**cached, "fieldSelector": bound, "labelSelector": not_ours}
                )
        except ApiFailed as failed:
            raise failed.meaning("list nodes and pods") from failed
        found = shapes(nodes, others, settings.slot, settings.topology, settings.template)
        offers = (self._offer(one) for one in sorted(found, key=lambda one: (one.place, one.kind, one.slots)))
        return [one for one in offers if one is not None]

    async def launch(self, machine: Machine, join: JoinBy) -> Found:
        pod = self._manifest(machine, join)
        try:
            async with connection(self._access) as api:
                return await self._started(api, await self._created(api, pod, machine.id))
        except ApiFailed as failed:
            raise failed.meaning(f"start the pod of {machine.id}", launching=True) from failed

    async def terminate(self, external_id: str) -> None:
        try:
            async with connection(self._access) as api:
                await api.ask("DELETE", f"{self._pods}/{quote(external_id, safe='')}")
        except ApiFailed as failed:
            if failed.code != 404:
                raise failed.meaning(f"delete pod {external_id}") from failed

    async def list(self) -> Sequence[Found]:
        # Without a resourceVersion, the server reads its store: a pod that was seen before and is missing now is gone.
        before = dict(self._last)
        try:
            async with connection(self._access) as api:
                query = {"labelSelector": f"{CLUSTER}={self._settings.cluster}"}
                listed = [Pod(one) for one in await api.list(self._pods, query)]
                await self._tidy(api, listed)
        except ApiFailed as failed:
            raise failed.meaning("list its pods") from failed
        for pod in listed:
            self._see(pod)
        names, oldest = {pod.name for pod in listed}, self._now() - _REMEMBERED
        for name in (before.keys() & self._last.keys()) - names:
            self._end(self._last[name])
        self._ended = {
            name: (one, seen) for name, (one, seen) in self._ended.items() if seen > oldest or name in names
        }
        present = [self._found(pod) for pod in listed if not pod.ended and not pod.waits]
        return [*present, *(one for one, _ in self._ended.values())]

    def _manifest(self, machine: Machine, join: JoinBy) -> dict[str, object]:
        if machine.region != self._namespace:
            raise ProviderRefused(
                f"{machine.region} is not used; pods run in the namespace {self._namespace}."
            )
        if machine.device_kind not in self._settings.prices.get(machine.market, {}):
            raise ProviderRefused(
                f"{machine.device_kind} is not sold as {machine.market}; see HEADWAY_KUBERNETES_{machine.market.name}."
            )
        try:
            return manifest(machine, join, self._settings)
        except ValueError as error:
            raise ProviderRefused(f"{machine.id} is no pod of this cluster: {error}.") from error

    async def _created(self, api: Api, fields: dict[str, object], machine_id: str) -> Pod:
        """Return the lease's pod: a new one, or that of an earlier request. Raises: ApiFailed, Unavailable, ProviderRefused."""
        try:
            return Pod(await api.ask("POST", self._pods, body=fields))
        except ApiFailed as failed:
            if failed.reason != "AlreadyExists":
                raise
        pod = await self._look(api, pod_name(self._settings.cluster, machine_id))
        if (pod.cluster, pod.machine_id) != (self._settings.cluster, machine_id):
            raise ProviderRefused(f"Pod {pod.name} exists and is not of {machine_id}; delete it.")
        return pod

    async def _look(self, api: Api, name: str) -> Pod:
        """Return the pod of this name. Raises: Unavailable, if there is none (any more)."""
        try:
            return Pod(await api.ask("GET", f"{self._pods}/{name}"))
        except ApiFailed as failed:
            if failed.code == 404:
                raise Unavailable(
                    f"Pod {name} is gone before it started; the service tries again."
                ) from failed
            raise failed.meaning(f"show pod {name}") from failed

    async def _started(self, api: Api, pod: Pod) -> Found:
        """Return the machine once its pod has a node, and its agent has started or the time for that is over.

        Raises:
            NoCapacity: no node in time; the pod is deleted.
            ProviderRefused: its container cannot start; the pod is deleted.
            Unavailable: it is not known what became of the pod.
        """
        clock = asyncio.get_running_loop()
        give_up_s, poll_s = clock.time() + self._settings.wait_s, _POLL_S
        while not (pod.ended or pod.runs or pod.cannot_start or pod.deleted) and clock.time() < give_up_s:
            await asyncio.sleep(min(poll_s, max(0.0, give_up_s - clock.time())))
            poll_s = min(2 * poll_s, _LONGEST_POLL_S)
            pod = await self._look(api, pod.name)
        if pod.cannot_start and not pod.deleted:
            await self._delete(api, pod)
            raise ProviderRefused(
                f"Pod {pod.name} cannot start ({pod.cannot_start}); correct HEADWAY_KUBERNETES_IMAGE and the pod's settings."
            )
        if pod.waits:
            await self._delete(api, pod)
            raise NoCapacity(
                f"Kubernetes has no node for it within {self._settings.wait_s:g} s: {pod.unscheduled or 'no reason given'}"
            )
        self._see(pod)
        return self._found(pod, ended=pod.ended)

    async def _delete(self, api: Api, pod: Pod) -> None:
        """Delete a pod only as it was seen. Raises: Unavailable, if it has changed meanwhile, such as got a node."""
        try:
            await api.ask("DELETE", f"{self._pods}/{pod.name}", body={"preconditions": pod.version})
        except ApiFailed as failed:
            if failed.code != 404:
                raise failed.meaning(f"delete pod {pod.name}") from failed

    async def _tidy(self, api: Api, listed: Sequence[Pod]) -> None:
        """Delete pods that ended some time ago, which count for a quota of pods, and those that a lost launch left waiting."""
        now = self._now()
        for pod in listed:
            _, seen = self._ended.get(pod.name, (None, now))
            if (pod.ended and now - seen > _REMEMBERED) or (pod.waits and now - pod.created_at > _ABANDONED):
                with contextlib.suppress(Unavailable):  # the next list tries again
                    await self._delete(api, pod)

    def _see(self, pod: Pod) -> None:
        if pod.ended:
            self._end(pod)
        elif not pod.waits:
            self._last[pod.name] = pod
            self._ended.pop(pod.name, None)

    def _end(self, pod: Pod) -> None:
        self._last.pop(pod.name, None)
        self._ended.setdefault(pod.name, (self._found(pod, ended=True), self._now()))

    def _found(self, pod: Pod, *, ended: bool = False) -> Found:
        since = pod.since or self._now()
        return Found(
            external_id=pod.name,
            machine_id=pod.machine_id,
            ended=ended,
            billed_from=since,
            billed_to=max(pod.ended_at or self._now(), since) if ended else None,
            message=f"pod {pod.name} ended: {pod.why or 'it was deleted'}" if ended else "",
        )

    def _offer(self, shape: Shape) -> Offer | None:
        """Return the offer of a shape, or None if its kind has no price."""
        prices = {
            market: usd * shape.slots
            for market, kinds in self._settings.prices.items()
            if (usd := kinds.get(shape.kind)) is not None
        }
        if not prices:
            return None
        per_slot = self._settings.slot
        return Offer(
            provider=self.name,
            region=self._namespace,
            zone=shape.place,
            instance_type=shape.instance_type,
            device_kind=shape.kind,
            devices=shape.slots,
            vcpus=int(per_slot["cpu"] * shape.slots),
            memory_bytes=int(per_slot.get("memory", 0) * shape.slots),
            on_demand_usd_per_h=prices.get(Market.ON_DEMAND),
            spot_usd_per_h=prices.get(Market.SPOT),
            hazard_per_h=_HAZARD_PER_H if Market.SPOT in prices else 0.0,
            min_billed_s=0.0,
            seen_at=self._now(),
        )
