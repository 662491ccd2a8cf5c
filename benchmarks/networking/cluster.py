"""A stack without agents of its own, whose agents run in network namespaces."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.networking.forwarding import Forwarder
from benchmarks.networking.namespaces import Bridge, Namespace, bridge
from headway.local.agents import agent_program
from headway.local.redis import EmbeddedRedis
from headway.local.stack import LocalStack, Stores
from headway.local.supervisor import Program

ROOT = Path(__file__).parents[2]
_SERVICE, _QUEUE = 1, 2
"""Last numbers of the addresses of the service and of Redis."""


@dataclass
class NetworkHost(Namespace):
    """A namespace with an agent."""

    stack: LocalStack
    program: Program

    @property
    def state(self) -> Path:
        """State folder of the agent."""
        return self.stack.data / "agents" / self.name


@dataclass
class Network:
    """Hosts behind a bridge, and a stack whose service they reach at an address of the bridge, and Redis at another."""

    bridge: Bridge
    stack: LocalStack
    url: str
    service_address: str
    queue_address: str
    exits: ExitStack
    hosts: dict[str, NetworkHost] = field(default_factory=dict)

    def add_host(self, name: str, *, slots: int = 1, env: Mapping[str, str] = {}) -> NetworkHost:
        """Start an agent on a new host."""
        namespace = self.bridge.add(name)
        log = self.stack.data / "hosts" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        token = self.stack.join_token_file.read_text(encoding="utf-8").strip()
        program = agent_program(
            name,
            self.url,
            state=self.stack.data / "agents" / name,
            log=log,
            env={**os.environ, "PYTHONPATH": str(ROOT), "HEADWAY_JOIN_TOKEN": token, **env},
            arguments=["--slots", str(slots)],
            inside=namespace.inside(),
        )
        self.hosts[name] = NetworkHost(**asdict(namespace), stack=self.stack, program=program)
        self.exits.callback(program.stop)
        program.start()
        return self.hosts[name]

    def cut(self, one: Namespace, other: Namespace) -> None:
        """Lose all packets between two hosts."""
        one.lose(other.address)
        other.lose(one.address)

    def join(self, one: Namespace, other: Namespace) -> None:
        """Deliver the packets between two hosts again."""
        one.reach(other.address)
        other.reach(one.address)


@contextmanager
def network(data: Path, *, settings: Mapping[str, str] = {}) -> Iterator[Network]:
    """Run a stack without agents behind a bridge of its own.

    Args:
        data: folder of all state.
        settings: further environment variables of the service.
    """
    with bridge() as made, ExitStack() as exits:
        service_address, queue_address = made.address(_SERVICE), made.address(_QUEUE)
        redis = EmbeddedRedis(data / "redis")
        inside = urlsplit(redis.start())
        exits.callback(redis.stop)
        assert inside.port is not None
        queue = Forwarder(queue_address, inside.port)
        exits.callback(queue.close)
        here, there = f"{inside.hostname}:{inside.port}", f"{queue_address}:{queue.port}"
        outside = inside._replace(netloc=inside.netloc.replace(here, there)).geturl()
        stack = LocalStack(
            data / "stack",
            agents=0,
            stores=Stores(redis_url=inside.geturl()),
            settings={"HEADWAY_AGENT_REDIS_URL": outside, **settings},
        )
        exits.enter_context(stack)
        api = Forwarder(service_address, urlsplit(stack.url).port or 0)
        exits.callback(api.close)
        url = f"http://{service_address}:{api.port}"
        yield Network(made, stack, url, service_address, queue_address, exits)
