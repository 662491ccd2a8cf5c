"""The end of a job with one rank whose script opens a store of its own."""

from __future__ import annotations

import pytest

from headway.contract.spec import JobSpec
from headway.contract.views.jobs import JobState
from tests.unit.service.domain.life.scenes import alter, exit_of, job_of, training
from tests.unit.service.domain.life.test_ends import after_end, failing

WAITED = exit_of(
    exit_code=1,
    log_tail=("torch.distributed.DistNetworkError: The client socket has timed out after 20000ms",),
)


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"elastic": {"min": 1, "max": 1}}, JobState.FAILED),
        ({"elastic": {"min": 1, "max": 2}}, JobState.RECOVERING),
        ({"elastic": {"min": 1, "max": 1}, "launch": "plain"}, JobState.RECOVERING),
    ],
)
def test_an_only_rank_that_waited_for_a_store_is_told_of_launch_plain(
    fields: dict[str, object], state: JobState
) -> None:
    cluster = failing(training())
    values = job_of(cluster).spec.model_dump(by_alias=True)
    alter(cluster, spec=JobSpec.model_validate({**values, **fields}))
    job = after_end(cluster, WAITED).job
    assert job.state is state
    assert ("set launch: plain" in job.message) == (state is JobState.FAILED)


@pytest.mark.parametrize(
    ("address", "told"),
    [("(127.0.0.1, 29777)", True), ("localhost:29777", True), ("(10.0.0.7, 29777)", False)],
)
def test_ranks_without_a_store_on_their_own_host_are_told_to_leave_its_address(
    address: str, told: bool
) -> None:
    cluster = failing(training())
    values = job_of(cluster).spec.model_dump(by_alias=True)
    alter(cluster, spec=JobSpec.model_validate({**values, "elastic": {"min": 1, "max": 2}}))
    error = f"torch.distributed.DistNetworkError: The client socket has timed out after 20000ms while trying to connect to {address}."
    job = after_end(cluster, exit_of(exit_code=1, log_tail=(error,))).job
    assert (
        job.state,
        f"{address}; Headway opens the store at the MASTER_ADDR and MASTER_PORT" in job.message,
    ) == (JobState.RECOVERING, told)
