"""Pods of leases: what is sent to Kubernetes, and what its answers say about them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from headway.contract.values.devices import is_cpu
from service.adapters.providers.kubernetes_nodes import GPU, levels_of
from service.adapters.providers.kubernetes_settings import KubernetesSettings
from service.domain.rental.machines import Machine
from service.usecases.ports.rental import JoinBy

CLUSTER, MACHINE, NODE = "headway/cluster", "headway/machine", "headway/node"
"""Labels of a pod: the cluster of Headway, the lease, and the name of the agent."""
_QUEUE = "kueue.x-k8s.io/queue-name"
_TYPE = re.compile(r"(?P<kind>[a-z0-9][a-z0-9._-]{0,62}):(?P<slots>[1-9][0-9]{0,3})")
_SECURITY = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}
_CANNOT_START = frozenset(
    """
    ImagePullBackOff InvalidImageName ErrImageNeverPull CreateContainerConfigError CreateContainerError RunContainerError
    """.split()  # noqa: SIM905 - read as prose
)
"""Reasons of a container that does not start by itself. A first failed pull, `ErrImagePull`, is repeated."""


@dataclass(frozen=True, slots=True)
class Pod:
    """Pod of a lease, as the API server describes it."""

    fields: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the pod, and of the machine at its provider."""
        return str(self.fields["metadata"]["name"])

    @property
    def machine_id(self) -> str:
        """Lease in the pod's label."""
        return str(self._labels.get(MACHINE, ""))

    @property
    def cluster(self) -> str:
        """Cluster of Headway in the pod's label."""
        return str(self._labels.get(CLUSTER, ""))

    @property
    def version(self) -> Mapping[str, str]:
        """Preconditions that hold while the pod is as it was seen."""
        metadata = self.fields["metadata"]
        return {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}

    @property
    def waits(self) -> bool:
        """Return whether the pod has no node yet."""
        return not self.fields["spec"].get("nodeName") and not self.ended

    @property
    def ended(self) -> bool:
        """Return whether all of its processes have ended."""
        return self._status.get("phase") in {"Succeeded", "Failed"}

    @property
    def deleted(self) -> bool:
        """Return whether somebody has asked for its end."""
        return "deletionTimestamp" in self.fields["metadata"]

    @property
    def runs(self) -> bool:
        """Return whether its agent has started."""
        return any("running" in one.get("state", {}) for one in self._containers)

    @property
    def since(self) -> datetime | None:
        """Time since which the pod holds a node; None while it has none."""
        for one in self._status.get("conditions", []):
            if one["type"] == "PodScheduled" and one["status"] == "True":
                return _moment(one.get("lastTransitionTime"))
        return None if self.waits else self.created_at

    @property
    def created_at(self) -> datetime:
        """Time at which the API server took the pod."""
        return datetime.fromisoformat(self.fields["metadata"]["creationTimestamp"])

    @property
    def ended_at(self) -> datetime | None:
        """Time at which its last process ended, if Kubernetes knows it."""
        times = [
            _moment(one.get("state", {}).get("terminated", {}).get("finishedAt")) for one in self._containers
        ]
        return max((time for time in times if time is not None), default=None)

    @property
    def cannot_start(self) -> str:
        """Sentence about a container that does not start by itself, such as a missing image; empty if there is none."""
        for one in self._containers:
            waiting = one.get("state", {}).get("waiting", {})
            if waiting.get("reason") in _CANNOT_START:
                return f"{waiting['reason']}: {waiting.get('message', 'without a message')}"
        return ""

    @property
    def unscheduled(self) -> str:
        """Sentence of the scheduler about a pod without a node."""
        for one in self._status.get("conditions", []):
            if one["type"] == "PodScheduled" and one["status"] != "True":
                return str(one.get("message") or one.get("reason") or "")
        return ""

    @property
    def why(self) -> str:
        """Reason of the pod's end as far as it was seen; empty if none was."""
        status = self._status
        said = [
            f"{one.get('reason', '')}: {one.get('message', '')}"
            for one in status.get("conditions", [])
            if one["type"] == "DisruptionTarget" and one["status"] == "True"
        ]
        said += [f"{status['reason']}: {status.get('message', '')}"] if status.get("reason") else []
        for one in self._containers:
            end = one.get("state", {}).get("terminated")
            if end is not None:
                said.append(f"{end.get('reason') or 'ended'}, exit code {end.get('exitCode')}")
        return "; ".join(one.strip(": ") for one in said)

    @property
    def _status(self) -> Mapping[str, Any]:
        return self.fields.get("status") or {}

    @property
    def _labels(self) -> Mapping[str, str]:
        return self.fields["metadata"].get("labels") or {}

    @property
    def _containers(self) -> list[Mapping[str, Any]]:
        return self._status.get("containerStatuses") or []


def pod_name(cluster: str, machine_id: str) -> str:
    """Return the name of a lease's pod, the same for each attempt: the API server takes a name once."""
    readable = re.sub(r"[^a-z0-9-]+", "-", machine_id.lower()).strip("-")[:40]
    digest = hashlib.sha256(f"{cluster}\0{machine_id}".encode()).hexdigest()[:12]
    return f"headway-{readable}-{digest}"


def manifest(machine: Machine, join: JoinBy, settings: KubernetesSettings) -> dict[str, Any]:
    """Return the pod of a lease: its agent, whose ranks run beside it in the one container.

    Raises:
        ValueError: the machine's type or place is not of this provider.
    """
    match = _TYPE.fullmatch(machine.instance_type)
    if match is None:
        raise ValueError(f"{machine.instance_type} is not a device kind with a number of slots")
    kind, slots = match["kind"], int(match["slots"])
    levels = levels_of(machine.zone, settings.topology)
    labels = {CLUSTER: settings.cluster, MACHINE: machine.id, NODE: join.node_name}
    if settings.queue:
        labels[_QUEUE] = settings.queue
    template = dict(settings.template)
    (own,) = template.pop("containers", None) or [{}]
    selector = {settings.topology[level]: name for level, name in levels.items()}
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        **template,
        "nodeSelector": {**template.get("nodeSelector", {}), **selector},
        "restartPolicy": "Never",  # an agent that comes back by itself would be a machine that nobody asked for
        "terminationGracePeriodSeconds": settings.grace_s,
        "containers": [_agent(own, join, settings, kind, slots, levels)],
        "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}, *template.get("volumes", [])],
    }
    if not is_cpu(kind):
        tolerations = template.get("tolerations", [])
        spec["tolerations"] = [*tolerations, {"key": GPU, "operator": "Exists"}]
    if machine.market in settings.classes:
        spec["priorityClassName"] = settings.classes[machine.market]
    name = pod_name(settings.cluster, machine.id)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def _agent(
    own: Mapping[str, Any],
    join: JoinBy,
    settings: KubernetesSettings,
    kind: str,
    slots: int,
    levels: Mapping[str, str],
) -> dict[str, Any]:
    amounts = {name: _written(amount * slots) for name, amount in settings.slot.items()}
    limits = {name: amount for name, amount in amounts.items() if name != "cpu"}  # unused cores are lent
    gpus = {} if is_cpu(kind) else {GPU: str(slots)}
    env = {
        "HEADWAY_URL": join.url,
        "HEADWAY_JOIN_TOKEN": join.token,
        "HEADWAY_METADATA": "kubernetes",
        "HEADWAY_KILL_WAIT_S": str(settings.grace_s),
    }
    if levels:
        env["HEADWAY_LABELS"] = ",".join(f"{level}={name}" for level, name in levels.items())
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    arguments = ["--own-jobs", "--name", join.node_name, "--slots", str(slots), "--address", "$(POD_IP)"]
    return {
        "securityContext": _SECURITY,
        **own,
        "name": "agent",
        "image": settings.image,
        "args": [*arguments, *(["--device-kind", kind] if is_cpu(kind) else [])],
        "env": [
            address,
            *({"name": name, "value": value} for name, value in env.items()),
            *own.get("env", []),
        ],
        "resources": {"requests": {**amounts, **gpus}, "limits": {**limits, **gpus}},
        "volumeMounts": [{"name": "memory", "mountPath": "/dev/shm"}, *own.get("volumeMounts", [])],  # noqa: S108 - in the pod
    }


def _written(amount: Decimal) -> str:
    return format(amount.normalize(), "f")


def _moment(text: object) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None
