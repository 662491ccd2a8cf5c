"""A Headway of its own for each module: what is killed here is missed by nobody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headway.client.client import Client
from headway.local.stack import LocalStack
from tests.e2e.conftest import Cluster, PatientJob, patient

__all__ = ["PatientJob", "patient"]

SLOTS = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two agents with two slots each, and a client that waits long for a service that was killed."""
    data = tmp_path_factory.mktemp("chaos")
    with (
        LocalStack(data, agents=2, slots=SLOTS) as stack,
        Client(stack.url, stack.token, patience_s=60) as client,
    ):
        yield Cluster(stack, client)
