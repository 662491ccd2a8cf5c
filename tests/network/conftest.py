from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.networking.cluster import Network, network
from benchmarks.networking.namespaces import why_not
from headway.client.client import Client
from tests.e2e.conftest import Cluster


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    """A stack whose hosts are network namespaces."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with network(tmp_path) as found:
        yield found


@pytest.fixture
def client(net: Network) -> Iterator[Client]:
    with net.stack.client() as found:
        yield found


@pytest.fixture
def cluster(net: Network, client: Client) -> Cluster:
    return Cluster(net.stack, client)
