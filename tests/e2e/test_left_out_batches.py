"""A batch that takes no step is told to the job's owner by the event, `headway describe` and the job's page."""

from __future__ import annotations

from urllib.request import Request, urlopen

import pytest

from headway.contract.runtime import BATCH_LEFT_OUT
from headway.contract.spec import JobSpec
from tests.e2e.conftest import SCRIPTS, Cluster, submit_at


@pytest.mark.slow  # a service, and ranks with torch
def test_batch_that_took_no_step_shows_in_the_event_the_description_and_the_page(
    cluster: Cluster, name: str
) -> None:
    spec = {"name": name, "workdir": str(SCRIPTS), "run": "python leaves_out.py", "elastic": {"max": 1}}
    job = submit_at(cluster.client, JobSpec.model_validate(spec), 1)
    done = cluster.ended(job)
    (warned,) = [one for one in cluster.client.events(job) if one.kind == "warning"]
    assert warned.data == {"code": BATCH_LEFT_OUT}
    assert "8 samples" in warned.message
    assert done.progress.warnings == [warned.message]
    assert done.progress.gradients_lost
    shown = " ".join(cluster.headway("describe", name).stdout.split())
    assert "8 samples" in shown
    assert "but gradients were lost (see the warning)" in shown
    page = Request(
        f"{cluster.stack.url}/jobs/{name}", headers={"Authorization": f"Bearer {cluster.stack.token}"}
    )
    with urlopen(page, timeout=30) as answer:
        text = answer.read().decode()
    assert warned.message.replace("'", "&#39;") in text
