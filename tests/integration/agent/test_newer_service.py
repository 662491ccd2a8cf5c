"""An agent ignores unknown parts of a newer service's messages, and never reports them as done."""

from __future__ import annotations

import json

import pytest

from headway.contract.agents import COMMAND_FIELD
from tests.integration.agent.looking import wait_until
from tests.integration.agent.stub import StubService


def push(stub: StubService, **command: object) -> None:
    stub.redis.xadd(stub.stream, {COMMAND_FIELD: json.dumps(command)})


@pytest.mark.slow
def test_commands_that_it_does_not_know_do_not_stand_in_the_way(shared: StubService) -> None:
    push(shared, kind="dance", command_id="newer-1", job_id="later", generation=1)
    push(shared, kind="stop", command_id="newer-2", job_id="later", generation=1, mode="gently", grace_s=1.0)
    known = shared.run_command("after", "true")
    push(shared, **known.model_dump(mode="json"), tempo=3)
    assert shared.exits("after")[0].exit_code == 0
    wait_until(lambda: shared.redis.xlen(shared.stream) == 0)
    acknowledged = {one for report in shared.reports for one in report.acknowledged}
    assert known.command_id in acknowledged
    assert not acknowledged & {"newer-1", "newer-2"}, "the service must see that they were not taken up"
