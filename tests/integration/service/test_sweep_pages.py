"""The pages of sweeps over a real database: who sees and does what, and what a trial's page says."""

from __future__ import annotations

import json
from contextlib import aclosing

import pytest

from headway.contract.agents import RunCommand
from headway.contract.views.identity import EVERYWHERE, Role
from headway.contract.views.jobs import JobState
from service.console.page_context import PageContext
from service.console.pages.page import Key, Viewer
from tests.integration.service.conftest import Harness, entry
from tests.integration.service.test_console import FORM, browser
from tests.integration.service.test_sweeps import LOSS, ends, reports_loss, view

SPACE = {"lr": [0.1, 0.01, 0.001]}


async def two_sweeps(harness: Harness) -> None:
    for project in ("vision", "speech"):
        (await harness.client.put(f"/api/v1/projects/{project}", json={})).raise_for_status()
        await harness.submit_sweep(f"sweep-of-{project}", SPACE, sweep=LOSS, project=project)


async def test_list_is_empty_with_an_example_and_has_sweeps_newest_first(harness: Harness) -> None:
    empty = (await harness.client.get("/sweeps")).text
    assert "No sweeps." in empty
    assert "HEADWAY_PARAM_LR" in empty
    await harness.submit_sweep("first", SPACE)
    second = await harness.submit_sweep("second", SPACE, sweep=LOSS)
    # A page may be a second old: another address is another page.
    page = (await harness.client.get("/sweeps?project=default")).text
    assert page.index("second") < page.index("first")
    assert f'href="/sweeps/{second.id}"' in page
    assert "3 pending" in page
    assert "loss (minimise)" in page
    assert '<a href="/sweeps" aria-current="page">Sweeps</a>' in page


async def test_page_has_lines_best_table_and_csv(harness: Harness) -> None:
    await harness.submit_sweep("gpt", SPACE, sweep=LOSS)
    agent = await harness.join(slots=2)
    await harness.turn()
    runs = {one.job_name: one for one in await agent.commands() if isinstance(one, RunCommand)}
    for run in runs.values():
        await agent.report(entry("ranks_started", run, how="zygote"))
    await reports_loss(agent, runs["gpt-1"], 3.0, 2.0)
    await reports_loss(agent, runs["gpt-2"], 0.5)
    await ends(agent, runs["gpt-2"])
    known = await view(harness)
    page = (await harness.client.get("/sweeps/gpt?order=value")).text
    best = known.trials[1].job_id
    assert f'Best: <a href="/jobs/{best}">gpt-2</a>, loss 0.5 with lr 0.01.' in page
    assert page.count('class="trial open"><a') == 1
    assert f'<g id="line-2" class="trial best"><a href="/jobs/{best}" tabindex="-1">' in page
    assert page.index('id="trial-2"') < page.index('id="trial-1"') < page.index('id="trial-3"')
    assert 'aria-sort="ascending"><a href="?order=-value#h-trials">best loss' in page
    assert "After 1 ended trial the best loss is 0.5." in page
    results = f"/api/v1/sweeps/{known.id}/results"
    assert f'href="{results}" download="gpt.csv"' in page
    assert (await harness.client.get(results)).text.count("\n") == 4
    trial = (await harness.client.get("/jobs/gpt-2")).text
    assert f'trial 2 of the sweep <a href="/sweeps/{known.id}">gpt</a>' in trial
    assert "<dt>lr</dt><dd>0.01" in trial


async def test_sweeps_of_other_projects_have_no_page(harness: Harness) -> None:
    await two_sweeps(harness)
    other = await view(harness, "sweep-of-speech")
    async with await browser(harness, Role.USER, "vision") as user:
        listed = (await user.get("/sweeps")).text
        assert "sweep-of-vision" in listed
        assert "sweep-of-speech" not in listed
        assert (await user.get("/sweeps?project=speech")).status_code == 404
        for name in ("sweep-of-speech", other.id):
            shown = await user.get(f"/sweeps/{name}")
            assert shown.status_code == 404
            assert other.trials[0].job_id not in shown.text
            assert (await user.get(f"/live/sweep/{name}")).status_code == 404
            answer = await user.post(f"/sweeps/{name}/cancel", content="sure=yes", headers=FORM)
            assert answer.status_code == 404
    assert (await view(harness, "sweep-of-speech")).states == {JobState.PENDING: 3}


async def test_viewer_is_offered_no_action_and_may_do_none(harness: Harness) -> None:
    await two_sweeps(harness)
    async with await browser(harness, Role.VIEWER, EVERYWHERE) as viewer:
        page = (await viewer.get("/sweeps/sweep-of-vision")).text
        assert "Download as CSV" in page
        for verb in ("cancel", "pause", "resume", "prioritize"):
            assert f"/{verb}" not in page
            path = f"/sweeps/sweep-of-vision/{verb}"
            answer = await viewer.post(path, content="sure=yes&priority=1", headers=FORM)
            assert answer.status_code == 403, verb
            assert "needs the role" in answer.text
    async with await browser(harness, Role.USER, "vision") as user:
        assert "/cancel" in (await user.get("/sweeps/sweep-of-vision")).text
    assert (await view(harness, "sweep-of-vision")).states == {JobState.PENDING: 3}


async def test_trials_are_paused_resumed_prioritised_and_cancelled_after_a_question(harness: Harness) -> None:
    await harness.submit_sweep("gpt", SPACE)

    async def does(verb: str, fields: str = "") -> str:
        path = f"/sweeps/gpt/{verb}"
        before = await view(harness)
        asked = await harness.client.post(path, content=fields, headers=FORM)
        assert (asked.status_code, "<h1>" in asked.text, f"Yes, {verb}" in asked.text) == (200, True, True)
        assert await view(harness) == before, "nothing was confirmed"
        done = await harness.client.post(path, content=f"sure=yes&{fields}", headers=FORM)
        assert done.status_code == 303, done.text
        return (await harness.client.get(done.headers["location"])).text

    assert "The trials stop and pause." in await does("pause")
    assert (await view(harness)).states == {JobState.PAUSED: 3}
    assert "continue as soon as slots are free" in await does("resume")
    assert (await view(harness)).states == {JobState.PENDING: 3}
    assert "new priority of the trials" in await does("prioritize", "priority=80")
    assert (await harness.job("gpt-2")).spec.priority == 80
    assert "are being cancelled" in await does("cancel")
    assert (await view(harness)).states == {JobState.CANCELLED: 3}
    entries = (await harness.client.get("/api/v1/audit")).json()["items"]
    assert [one["action"] for one in entries[:4]] == ["steer_sweep"] * 4


FILE = "name: gpt\nrun: python -V\nsweep: {parameters: {lr: [0.1, 0.01]}}\n"


async def test_job_file_with_a_sweep_is_submitted_from_the_page_and_refused_as_a_whole(
    harness: Harness,
) -> None:
    done = await harness.client.post("/submit", data={"job": FILE, "what": "submit"})
    assert done.status_code == 303, done.text
    stored = await view(harness)
    assert done.headers["location"] == f"/sweeps/{stored.id}?done=submit-sweep"
    assert [one.parameters for one in stored.trials] == [{"lr": 0.1}, {"lr": 0.01}]
    assert "The trials are submitted." in (await harness.client.get(done.headers["location"])).text
    again = await harness.client.post("/submit", data={"job": FILE, "what": "submit"})
    assert (again.status_code, "gpt-1" in again.text) == (422, True)
    wrong = await harness.client.post("/submit", data={"job": FILE.replace("[0.1, 0.01]", "[]")})
    assert (wrong.status_code, "sweep.parameters.lr" in wrong.text) == (422, True)
    plan = await harness.client.post("/submit", data={"job": FILE, "what": "plan"})
    assert (plan.status_code, "makes several jobs" in plan.text) == (422, True)
    assert [one["id"] for one in (await harness.client.get("/api/v1/sweeps")).json()["items"]] == [stored.id]
    async with await browser(harness, Role.VIEWER, EVERYWHERE) as viewer:
        assert (await viewer.post("/submit", data={"job": FILE, "what": "submit"})).status_code == 403


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/sweeps/none", "", 404),
        ("GET", "/sweeps/gpt?order=nonsense", "", 422),
        ("GET", "/sweeps?cursor=%00", "", 422),
        ("POST", "/sweeps/none/cancel", "sure=yes", 404),
        ("POST", "/sweeps/gpt/explode", "sure=yes", 404),
        ("POST", "/sweeps/gpt/prioritize", "sure=yes&priority=101", 422),
    ],
)
async def test_wrong_request_is_an_error_page(
    harness: Harness, method: str, path: str, body: str, status: int
) -> None:
    await harness.submit_sweep("gpt", SPACE)
    answer = await harness.client.request(method, path, content=body, headers=FORM)
    assert answer.status_code == status, answer.text
    assert "<h1" in answer.text


async def test_open_page_gets_only_the_trials_that_changed(harness: Harness) -> None:
    stored = await harness.submit_sweep("gpt", SPACE)
    context: PageContext = harness.client._transport.app.state.console  # type: ignore[attr-defined]
    key = Key("sweep", Viewer(None, may_control=True), about=stored.id)
    known = (await context.live_pages.current(key)).version
    async with aclosing(context.live_pages.follow(key, known)) as events:
        assert "event: beat" in await anext(events)
        await harness.post("jobs/gpt-3/cancel")
        async for event in events:
            if "event: patch" in event:
                break
    pieces = json.loads(event.split("data: ")[1])["pieces"]
    assert "trial-3" in pieces
    assert "trial-1" not in pieces
    assert "line-1" not in pieces
