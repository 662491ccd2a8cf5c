"""Hosts of tests whose agents are restarted, replaced or kept while the service goes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headway.client.client import Client
from headway.contract.agents import NodeState
from headway.local.agents import agent_program
from headway.local.ports import HOST
from headway.local.stack import LocalStack
from headway.local.supervisor import Program
from tests.integration.agent.looking import end_all

SLOTS = 2
ROOT = Path(__file__).parents[2]


@dataclass
class Host:
    """A host whose agent can be replaced by one of other code. Its ranks live on meanwhile."""

    stack: LocalStack
    name: str
    program: Program | None = None

    @property
    def state(self) -> Path:
        return self.stack.data / "agents" / self.name

    @property
    def log(self) -> Path:
        """Not among the stack's own: what it finds beside these when it starts, it ends."""
        return self.stack.data / "hosts" / f"agent-{self.name}.log"

    def start(self, code: Path = ROOT) -> None:
        env = {**os.environ, "PYTHONPATH": str(code)}
        env["HEADWAY_JOIN_TOKEN"] = self.stack.join_token_file.read_text().strip()
        self.log.parent.mkdir(exist_ok=True)
        self.program = agent_program(
            self.name,
            self.stack.url,
            state=self.state,
            log=self.log,
            env=env,
            arguments=["--address", HOST, "--slots", str(SLOTS)],
            own_jobs=False,
        )
        self.program.start()

    def update(self, code: Path) -> None:
        assert self.program is not None
        self.program.stop()
        self.start(code)

    def clean_up(self) -> None:
        if self.program is not None:
            self.program.stop()
        end_all(self.state)


def ready(client: Client) -> set[str]:
    """Names of the nodes that take jobs."""
    return {node.name for node in client.nodes() if node.state is NodeState.READY}
