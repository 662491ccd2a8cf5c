from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.local.redis import EmbeddedRedis
from tests.integration.agent.stub import StubService, service
from tests.integration.containers.engine import Podman, engine, missing

SERVICE, AGENT, LIGHT = (
    "localhost/headway-service",
    "localhost/headway-agent",
    "localhost/headway-agent-light",
)
_DATABASE = 6


@pytest.fixture(scope="package")
def bare() -> Iterator[Podman]:
    """An engine with the base alone."""
    lacking = missing()
    if lacking:
        pytest.skip(
            f"NO CONTAINERS: THE IMAGES ARE NEITHER BUILT NOR RUN HERE. Missing: {', '.join(lacking)}."
        )
    folder = Path(tempfile.mkdtemp(prefix="hw-"))  # short: it holds the names of sockets
    with engine(folder) as made:
        made.make_base()
        yield made


@pytest.fixture(scope="package")
def podman(bare: Podman) -> Podman:
    """The same engine with the images of the service and of the agent with and without torch."""
    bare.build("service", SERVICE)
    bare.build("agent", LIGHT, AGENT_EXTRAS="agent")
    torch = os.environ.get("TORCH_PIP_ARGS", "")
    bare.build("agent", AGENT, TORCH_PIP_ARGS=torch, EXTRA_PACKAGES="scikit-learn")
    return bare


@pytest.fixture
def stub(redis: EmbeddedRedis) -> Iterator[StubService]:
    """What an agent of one test hears and is told."""
    with service(redis.url(_DATABASE)) as stub:
        yield stub
