"""A real control plane of Kubernetes on this host (etcd, API server, scheduler, controllers), and the kubelets of its nodes.

The control plane's programs come from the folder in `KUBEBUILDER_ASSETS`, or from `PATH`. There is no container runtime: a kubelet of
this module runs a container as a process in its own process namespace, without its image.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import yaml

from headway.local.ports import free_port

_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_FOLDER = os.environ.get("KUBEBUILDER_ASSETS", "")


def _program(name: str) -> str | None:
    return shutil.which(name, path=_FOLDER) or shutil.which(name)


INSTALLED = all(_program(one) for one in (*_PROGRAMS, "openssl", "unshare")) and os.geteuid() == 0
MISSING = (
    "THERE IS NO CONTROL PLANE OF KUBERNETES: ITS PROVIDER IS NOT TRIED (set KUBEBUILDER_ASSETS to a folder with "
    "etcd, kube-apiserver, kube-controller-manager and kube-scheduler; as root; `make kubernetes` says what is missing)"
)
NAMESPACE = "train"
ADMIN = "admin-token"
LOW, HIGH = "site-low", "site-high"
"""Priority classes. A pod of `HIGH` preempts one of `LOW`."""
PAUSE = "pause"
"""Image of a container that only waits."""
_START_S = 60.0
_POLL_S = 0.05
_HEARTBEAT_S = 2.0
_GRACE_OF_NODES = ("--node-monitor-period=1s", "--node-monitor-grace-period=20s")
_CONTROLLERS = "*,-nodeipam,-cloud-node-lifecycle,-service,-route"


class Refused(Exception):
    """Answer of the API server that is an error."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(f"{response.status_code}: {response.text[:500]}")
        self.code = response.status_code


@dataclass
class Container:
    """Container of a pod, as its kubelet runs it. `process` is None while its image is missing."""

    uid: str
    process: subprocess.Popen[bytes] | None
    killed_at: float | None = None
    reported: str = ""
    started_at: float = field(default_factory=time.monotonic)

    def first_process(self) -> int | None:
        """Return the id of the container's process 1 on the host, or None before it exists or after its end."""
        if self.process is None or self.process.poll() is not None:
            return None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        try:
            first = children.read_text(encoding="ascii").split()
        except OSError:
            return None
        return int(first[0]) if first else None

    def kill(self) -> None:
        """Kill every process of the container."""
        if self.process is not None:
            self.process.kill()  # the namespace ends with it
            self.process.wait()


class Kubelet(threading.Thread):
    """Agent of one node: it runs the pods that are bound to it, and reports their state and its own."""

    def __init__(self, cluster: Kubernetes, node: str) -> None:
        super().__init__(name=f"kubelet {node}", daemon=True)
        self._cluster = cluster
        self._node = node
        self._containers: dict[str, Container] = {}
        self._ending = threading.Event()
        self._next_heartbeat_s = 0.0

    def run(self) -> None:
        """Look at the node's pods until `stop`."""
        while not self._ending.wait(_POLL_S):
            try:
                if time.monotonic() >= self._next_heartbeat_s:
                    self._cluster.beat(self._node)
                    self._next_heartbeat_s = time.monotonic() + _HEARTBEAT_S
                pods = self._cluster.ask("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={self._node}")[
                    "items"
                ]
                for pod in pods:
                    self._sync(pod)
                self._forget({pod["metadata"]["uid"] for pod in pods})
            except (httpx.HTTPError, Refused):
                continue  # the server is away, or the pod is gone: looked at again

    def stop(self) -> None:
        """Stop as a machine does that loses its power: all containers are gone, and nothing is reported."""
        self._ending.set()
        self.join()
        for container in self._containers.values():
            container.kill()

    def _sync(self, pod: Mapping[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        deleted = "deletionTimestamp" in pod["metadata"]
        container = self._containers.get(uid)
        if container is None:
            if deleted or pod["status"].get("phase") in {"Succeeded", "Failed"}:
                if deleted:
                    self._remove(pod)
                return
            container = self._containers[uid] = Container(uid, self._start(pod))
        if deleted:
            self._end(container, pod)
        self._report(container, pod)
        if deleted and (container.process is None or container.process.poll() is not None):
            self._remove(pod)

    def _start(self, pod: Mapping[str, Any]) -> subprocess.Popen[bytes] | None:
        (spec,) = pod["spec"]["containers"]
        entry = self._cluster.images.get(spec["image"])
        if entry is None:
            return None
        folder = self._cluster.folder / "pods" / pod["metadata"]["uid"]
        (folder / "tmp").mkdir(parents=True)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": str(folder / "tmp"),
            "LANG": "C.UTF-8",
        }
        for one in spec.get("env", []):
            source = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            env[one["name"]] = (
                "127.0.0.1" if source == "status.podIP" else _expanded(one.get("value", ""), env)
            )
        words = [word.replace("{folder}", str(folder)) for word in entry]
        words += [_expanded(word, env) for word in spec.get("args", [])]
        inside = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", "--")
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                (*inside, *words), env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _end(self, container: Container, pod: Mapping[str, Any]) -> None:
        first = container.first_process()
        if container.killed_at is None:
            if first is not None:
                os.kill(first, signal.SIGTERM)
            container.killed_at = time.monotonic() + pod["metadata"].get("deletionGracePeriodSeconds", 30)
        elif time.monotonic() >= container.killed_at:
            container.kill()

    def _report(self, container: Container, pod: Mapping[str, Any]) -> None:
        (spec,) = pod["spec"]["containers"]
        now = _stamp()
        state: dict[str, dict[str, Any]]
        if container.process is None:
            reason = "ImagePullBackOff" if container.reported else "ErrImagePull"
            phase, state = "Pending", {"waiting": {"reason": reason, "message": f"no image {spec['image']}"}}
        elif (code := container.process.poll()) is None:
            phase, reason, state = "Running", "Running", {"running": {"startedAt": now}}
        else:
            phase = reason = "Failed" if code else "Succeeded"
            code = 128 - code if code < 0 else code
            state = {
                "terminated": {
                    "exitCode": code,
                    "reason": "Error" if code else "Completed",
                    "finishedAt": now,
                }
            }
        if container.reported == reason:
            return
        ready = phase == "Running"
        status = {
            "name": spec["name"],
            "image": spec["image"],
            "imageID": "",
            "restartCount": 0,
            "ready": ready,
            "state": state,
        }
        body = {"status": {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": [status]}}
        self._cluster.patch(f"{_path(pod)}/status", body)
        container.reported = reason

    def _remove(self, pod: Mapping[str, Any]) -> None:
        now = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        self._cluster.ask("DELETE", _path(pod), now)
        container = self._containers.get(pod["metadata"]["uid"])
        if container is not None:
            self._cluster.ran_s[pod["metadata"]["name"]] = time.monotonic() - container.started_at

    def _forget(self, uids: set[str]) -> None:
        for uid in self._containers.keys() - uids:
            self._containers.pop(uid).kill()  # deleted by force


@dataclass
class Kubernetes:
    """Cluster with nodes n1, n2 and so on, each in a rack of its own in the zone `a`.

    `images` are the entry points by image; `{folder}` in one is the container's own folder.
    """

    folder: Path
    nodes: int
    cpus: int
    images: dict[str, Sequence[str]] = field(default_factory=lambda: {PAUSE: ("sleep", "infinity")})
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    kubelets: dict[str, Kubelet] = field(default_factory=dict)
    ran_s: dict[str, float] = field(default_factory=dict)
    """Time from the start of a pod's container to the pod's removal, in seconds, by the pod's name."""

    def __post_init__(self) -> None:
        self.port, self._etcd_port, self._peer_port = free_port(), free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._client = httpx.Client(
            base_url=self.url,
            verify=False,
            timeout=10.0,
            headers={"Authorization": f"Bearer {ADMIN}"},
        )

    @property
    def kubeconfig(self) -> Path:
        """File with the administrator's access, for `KUBECONFIG`."""
        return self.folder / "kubeconfig"

    @property
    def authority(self) -> Path:
        """Certificate that the API server's own one is checked against."""
        return self.folder / "certs" / "apiserver.crt"

    def start(self) -> None:
        """Start the control plane and all nodes, and return once pods can be made and bound."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._openssl("genrsa -out sa.key 2048")
        self._openssl("rsa -in sa.key -pubout -out sa.pub")
        self._openssl(
            "req -x509 -newkey rsa:2048 -nodes -keyout client-ca.key -out client-ca.crt -days 2 -subj /CN=clients"
        )
        (self.folder / "tokens.csv").write_text(f'{ADMIN},admin,admin,"system:masters"\n', encoding="utf-8")
        self.write_kubeconfig(self.kubeconfig, ADMIN)
        self.start_store()
        self.start_server()
        shared = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--port=0", "--secure-port=0")
        self._spawn(
            "kube-controller-manager",
            *shared,
            "--service-account-private-key-file=sa.key",
            f"--controllers={_CONTROLLERS}",
            *_GRACE_OF_NODES,
        )
        self._spawn("kube-scheduler", *shared)
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for name, value in ((LOW, 100), (HIGH, 1000)):
            self.ask(
                "POST",
                "/apis/scheduling.k8s.io/v1/priorityclasses",
                {"metadata": {"name": name}, "value": value},
            )
        for number in range(1, self.nodes + 1):
            self.start_node(f"n{number}")
        self.until(lambda: self._has_account() and self._all_ready(), "the cluster")

    def start_store(self) -> None:
        """Start etcd."""
        local = f"http://127.0.0.1:{self._etcd_port}"
        peer = f"http://127.0.0.1:{self._peer_port}"
        self._spawn(
            "etcd",
            "--data-dir=etcd",
            f"--listen-client-urls={local}",
            f"--advertise-client-urls={local}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )

    def start_server(self) -> None:
        """Start the API server, and return once it answers."""
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--cert-dir=certs",
            "--service-account-key-file=sa.pub",
            "--service-account-signing-key-file=sa.key",
            "--service-account-issuer=https://kubernetes.default",
            "--token-auth-file=tokens.csv",
            "--client-ca-file=client-ca.crt",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.9.0.0/24",
        )
        self.until(self._answers, "the API server")

    def kill_server(self) -> None:
        """Kill the API server."""
        self._kill("kube-apiserver")

    def kill_store(self) -> None:
        """Kill etcd. The API server stays, and answers with errors."""
        self._kill("etcd")

    def compact(self) -> None:
        """Make the server forget every older moment, as it does by itself every five minutes. Lists that are under way get 410."""
        store = f"http://127.0.0.1:{self._etcd_port}/v3/kv"
        header = httpx.post(f"{store}/range", json={"key": "AA=="}).raise_for_status().json()["header"]
        body = {"revision": header["revision"], "physical": True}
        httpx.post(f"{store}/compaction", json=body).raise_for_status()

    def start_node(
        self, name: str, *, extra: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add a node with its kubelet. `extra` are further allocatable resources."""
        marks = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "a", "site/rack": f"r-{name}"}
        self.ask("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {**marks, **(labels or {})}}})
        amounts = {"cpu": str(self.cpus), "memory": "8Gi", "pods": "20", **(extra or {})}
        self.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": amounts, "allocatable": amounts}})
        self.beat(name)
        self.kubelets[name] = Kubelet(self, name)
        self.kubelets[name].start()

    def cut_node(self, name: str) -> None:
        """Take the power of a node away. Kubernetes keeps the node, which no longer reports."""
        self.kubelets.pop(name).stop()

    def lose_node(self, name: str) -> None:
        """Take the power of a node away, and delete it as a cloud's controller does."""
        if name in self.kubelets:
            self.cut_node(name)
        self.ask("DELETE", f"/api/v1/nodes/{name}")

    def beat(self, name: str) -> None:
        """Report that a node is ready."""
        now = _stamp()
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        self.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [ready]}})

    def occupy(self, node: str | None = None) -> str:
        """Create a pod of the high priority class that needs a whole node, and return its name."""
        requests = {"cpu": str(self.cpus)}
        spec: dict[str, Any] = {
            "priorityClassName": HIGH,
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "one", "image": PAUSE, "resources": {"requests": requests}}],
            "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
        }
        body = {"metadata": {"generateName": "other-"}, "spec": spec}
        return str(self.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)["metadata"]["name"])

    def pod(self, name: str) -> dict[str, Any]:
        """Return a pod. Raises: Refused, if it does not exist."""
        return self.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")

    def pods(self) -> list[dict[str, Any]]:
        """Return all pods of the namespace."""
        return list(self.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"])

    def clear(self) -> None:
        """Delete all pods, and return once they are gone."""
        self.ask("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods?gracePeriodSeconds=1")
        self.until(lambda: not self.pods(), "the end of all pods")

    def delete(self, name: str, grace_s: int | None = None) -> None:
        """Delete a pod."""
        query = "" if grace_s is None else f"?gracePeriodSeconds={grace_s}"
        self.ask("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}{query}")

    def evict(self, name: str) -> None:
        """Evict a pod, as a drain of its node does."""
        body = {
            "apiVersion": "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": NAMESPACE},
        }
        self.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction", body)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request as administrator. Raises: Refused, httpx.HTTPError."""
        return _answer(self._client.request(method, path, json=body))

    def patch(self, path: str, body: Mapping[str, Any]) -> None:
        """Change fields of an object. Raises: Refused, httpx.HTTPError."""
        kind = {"Content-Type": "application/strategic-merge-patch+json"}
        _answer(self._client.request("PATCH", path, json=body, headers=kind))

    def token(self, account: str, namespace: str = NAMESPACE) -> str:
        """Return a token of a service account, as Kubernetes mounts one into a pod."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return str(self.ask("POST", path, request)["status"]["token"])

    def write_certificate(self, user: str, group: str) -> tuple[Path, Path]:
        """Write a client certificate and its key, and return their files."""
        key, request, certificate = (self.folder / f"{user}.{end}" for end in ("key", "csr", "crt"))
        self._openssl(f"req -newkey rsa:2048 -nodes -keyout {key} -out {request} -subj /O={group}/CN={user}")
        signer = "-CA client-ca.crt -CAkey client-ca.key -CAcreateserial"
        self._openssl(f"x509 -req -in {request} {signer} -days 2 -out {certificate}")
        return certificate, key

    def write_kubeconfig(self, path: Path, token: str, server: str = "") -> None:
        """Write a kubeconfig with a token. `server` is an address other than the API server's own."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "t", "cluster": {"server": server or self.url, "insecure-skip-tls-verify": True}}
            ],
            "users": [{"name": "t", "user": {"token": token}}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t", "namespace": NAMESPACE}}],
            "current-context": "t",
        }
        path.write_text(yaml.safe_dump(config), encoding="utf-8")

    def until(self, condition: Any, what: str, within_s: float = _START_S) -> None:
        """Return once a condition holds. Raises: TimeoutError."""
        give_up_s = time.monotonic() + within_s
        while time.monotonic() < give_up_s:
            try:
                if condition():
                    return
            except (httpx.HTTPError, Refused):
                pass
            time.sleep(_POLL_S)
        raise TimeoutError(f"{what} of {self.folder} did not come within {within_s:g} s")

    def stop(self) -> None:
        """End all nodes and the control plane."""
        for kubelet in self.kubelets.values():
            kubelet.stop()
        for process in reversed(self.processes.values()):
            process.kill()  # nothing of it is kept
            process.wait()
        self._client.close()

    def _openssl(self, arguments: str) -> None:
        subprocess.run(["openssl", *arguments.split()], cwd=self.folder, check=True, capture_output=True)

    def _kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def _answers(self) -> bool:
        return self._client.get("/readyz").status_code == httpx.codes.OK

    def _has_account(self) -> bool:
        return bool(self.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"))

    def _all_ready(self) -> bool:
        nodes = self.ask("GET", "/api/v1/nodes")["items"]
        return len(nodes) == self.nodes and not any(node["spec"].get("taints") for node in nodes)

    def _spawn(self, name: str, *arguments: str) -> None:
        program = _program(name)
        assert program is not None, MISSING
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                (program, *arguments), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


@contextmanager
def kubernetes_cluster(folder: Path, *, nodes: int, cpus: int = 2) -> Iterator[Kubernetes]:
    """Run a cluster in a folder."""
    cluster = Kubernetes(folder, nodes, cpus)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _answer(response: httpx.Response) -> dict[str, Any]:
    if response.status_code >= httpx.codes.MULTIPLE_CHOICES:
        raise Refused(response)
    return dict(response.json())


def _path(pod: Mapping[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _expanded(text: str, env: Mapping[str, str]) -> str:
    for name, value in env.items():
        text = text.replace(f"$({name})", value)
    return text
