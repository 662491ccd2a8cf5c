from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.local.redis import EmbeddedRedis
from tests.integration.agent.stub import AgentProcess, StubService, service

_DATABASE = 7
"""Ours alone: other tests flush the first one."""


@pytest.fixture(scope="module")
def shared(redis: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubService]:
    """A service with one agent of four slots, for all tests of a module; each uses jobs of its own."""
    with service(redis.url(_DATABASE)) as stub:
        agent = AgentProcess(stub.url, tmp_path_factory.mktemp("agent") / "state", slots=4)
        agent.start()
        try:
            try:
                stub.wait_for(lambda: stub.reports)
            except AssertionError as error:
                raise AssertionError(f"the agent never reported; its log:\n{agent.log()}") from error
            yield stub
        finally:
            agent.clean_up()


@pytest.fixture
def stub(redis: EmbeddedRedis) -> Iterator[StubService]:
    """A service of one test."""
    with service(redis.url(_DATABASE)) as stub:
        yield stub


@pytest.fixture
def make_agent(stub: StubService, tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Makes agents of the service; they are gone after the test, and what they started with them."""
    made: list[AgentProcess] = []

    def make(*extra: str, state: Path = tmp_path / "state", **fields: object) -> AgentProcess:
        agent = AgentProcess(stub.url, state, *extra, **fields)  # type: ignore[arg-type]
        made.append(agent)
        return agent

    yield make
    for agent in made:
        agent.clean_up()
