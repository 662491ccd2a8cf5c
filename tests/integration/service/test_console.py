"""The pages over a real database: who sees and does what, without a browser."""

from __future__ import annotations

import json
import re
from contextlib import aclosing

import httpx
import pytest

from headway.contract.manifest import Manifest, Name
from headway.contract.views.identity import EVERYWHERE, Role
from headway.contract.views.jobs import JobState
from service.console.page_context import PageContext
from service.console.pages.page import Key, Viewer
from tests.integration.service.conftest import Harness
from tests.integration.service.roles import robot

FORM = {"content-type": "application/x-www-form-urlencoded"}


async def browser(harness: Harness, role: Role, project: str) -> httpx.AsyncClient:
    """Somebody with a role, as a browser that has no session."""
    token = (await robot(harness, role, project)).json()["token"]
    return httpx.AsyncClient(
        transport=harness.client._transport,
        base_url="http://headway",
        headers={"Authorization": f"Bearer {token}"},
    )


async def two_projects(harness: Harness) -> None:
    await harness.join("alpha", slots=2)
    for project in ("vision", "speech"):
        (await harness.client.put(f"/api/v1/projects/{project}", json={})).raise_for_status()
        await harness.submit(f"job-of-{project}", project=project)
    await harness.turn()


async def test_whoever_is_not_known_is_sent_to_the_sign_in_and_back(harness: Harness) -> None:
    nobody = httpx.AsyncClient(transport=harness.client._transport, base_url="http://headway")
    answer = await nobody.get("/jobs?state=all")
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/auth/login?return_to=/jobs%3Fstate%3Dall",
    )
    assert (await nobody.get("/live/jobs")).status_code == 401


async def test_pages_show_the_projects_of_whoever_looks_and_no_others(harness: Harness) -> None:
    await two_projects(harness)
    async with await browser(harness, Role.USER, "vision") as user:
        for path in ("/", "/jobs?state=all", "/rounds", "/money", "/nodes/alpha"):
            answer = await user.get(path)
            assert answer.status_code == 200, answer.text
            assert "job-of-speech" not in answer.text, path
        assert "job-of-vision" in (await user.get("/jobs")).text
        assert (await user.get("/jobs/job-of-speech")).status_code == 404
        assert (await user.get("/jobs?project=speech")).status_code == 404
        assert (
            await user.post("/jobs/job-of-speech/cancel", content="sure=yes", headers=FORM)
        ).status_code == 404
        assert (await user.get("/live/job/job-of-speech")).status_code == 404
    assert (await harness.job("job-of-speech")).state is not JobState.CANCELLED


async def test_only_who_may_is_offered_an_action_and_can_do_it(harness: Harness) -> None:
    await two_projects(harness)
    async with await browser(harness, Role.VIEWER, EVERYWHERE) as viewer:
        page = (await viewer.get("/jobs/job-of-vision")).text
        assert "/cancel" not in page
        assert 'href="/submit"' not in page
        assert "/prioritize" not in page
        assert "/drain" not in (await viewer.get("/nodes/alpha")).text
        assert "/cluster/policy" not in (await viewer.get("/rounds")).text
        for path in (
            "/jobs/job-of-vision/cancel",
            "/jobs/job-of-vision/prioritize",
            "/cluster/policy",
            "/nodes/alpha/drain",
            "/nodes/alpha/slots/0/release",
            "/nodes/alpha/slots/0/quarantine",
            "/simulations",
        ):
            answer = await viewer.post(path, content="sure=yes&change=kill_node&node=alpha", headers=FORM)
            assert answer.status_code == 403, path
            assert "needs the role" in answer.text
    page = (await harness.client.get("/jobs/job-of-vision")).text
    assert "/cancel" in page


async def test_job_file_of_who_may_not_submit_is_refused_unread(harness: Harness) -> None:
    await two_projects(harness)
    form = {"job": "{" * 65_000}
    async with await browser(harness, Role.VIEWER, EVERYWHERE) as viewer:
        refused = await viewer.post("/submit", data=form)
        assert refused.status_code == 403
        assert "needs the role user in a project" in refused.text
        assert "nested" not in refused.text, "the parser would have said this"
        planned = await viewer.post("/submit", data={**form, "what": "plan"})
        assert (planned.status_code, "nested more than" in planned.text) == (422, True)
    async with await browser(harness, Role.USER, "vision") as user:
        parsed = await user.post("/submit", data=form)
        assert (parsed.status_code, "nested more than" in parsed.text) == (422, True)
        other = {"job": "name: mine\nrun: python -V\nproject: speech"}
        assert (await user.post("/submit", data=other)).status_code == 422
    async with await browser(harness, Role.VIEWER, "vision") as viewer:
        assert (await viewer.post("/submit", data={**other, "what": "plan"})).status_code == 422


async def test_what_is_done_is_asked_about_first(harness: Harness) -> None:
    await two_projects(harness)
    asked = await harness.client.post("/jobs/job-of-vision/resize", content="slots=2", headers=FORM)
    assert asked.status_code == 200
    assert "Change the size of job-of-vision?" in asked.text
    assert (await harness.job("job-of-vision")).pinned_size is None
    done = await harness.client.post("/jobs/job-of-vision/pause", content="sure=yes", headers=FORM)
    assert done.status_code == 303
    again = await harness.client.get(done.headers["location"])
    assert "The job stops and pauses." in again.text


async def test_a_priority_and_the_policy_are_changed(harness: Harness) -> None:
    await two_projects(harness)
    path = "/jobs/job-of-vision"
    assert (
        '<input id="priority" name="priority" type="number" min="0" max="100" value="50"'
        in (await harness.client.get(path)).text
    )
    asked = await harness.client.post(f"{path}/prioritize", content="priority=80", headers=FORM)
    assert "Change the priority of job-of-vision?" in asked.text
    assert (await harness.job("job-of-vision")).spec.priority == 50
    done = await harness.client.post(f"{path}/prioritize", content="sure=yes&priority=80", headers=FORM)
    assert "applies from the next round on" in (await harness.client.get(done.headers["location"])).text
    assert (await harness.job("job-of-vision")).spec.priority == 80
    assert 'action="/cluster/policy"' in (await harness.client.get("/rounds")).text
    form = "policy=budget&parameters=usd_per_h%3D12"
    asked = await harness.client.post("/cluster/policy", content=form, headers=FORM)
    assert "Change the policy to budget?" in asked.text
    assert 'name="parameters" value="usd_per_h=12"' in asked.text
    done = await harness.client.post("/cluster/policy", content=f"sure=yes&{form}", headers=FORM)
    assert (done.status_code, done.headers["location"]) == (303, "/rounds?done=policy")
    cluster = (await harness.client.get("/api/v1/cluster")).json()
    assert (cluster["policy"], cluster["parameters"]) == ("budget", {"usd_per_h": 12.0})


async def test_a_slot_is_kept_from_jobs_with_a_reason_and_given_back(harness: Harness) -> None:
    await harness.join("alpha", slots=2)
    path = "/nodes/alpha/slots/1"
    assert "/slots/1/quarantine" in (await harness.client.get("/nodes/alpha")).text
    asked = await harness.client.post(f"{path}/quarantine", content="name=alpha", headers=FORM)
    assert "Quarantine slot 1 of alpha?" in asked.text
    assert '<input id="why" name="why"' in asked.text
    done = await harness.client.post(
        f"{path}/quarantine", content="sure=yes&why=its+fan+is+loud", headers=FORM
    )
    page = (await harness.client.get(done.headers["location"])).text
    assert "gets no jobs until it is released" in page
    # A page may be a second old; what was written is not.
    slots = (await harness.client.get("/api/v1/nodes")).json()["items"][0]["slots"]
    assert "its fan is loud" in slots[1]["quarantine"]["message"]
    again = await harness.client.post(f"{path}/release", content="sure=yes", headers=FORM)
    assert again.status_code == 303
    slots = (await harness.client.get("/api/v1/nodes")).json()["items"][0]["slots"]
    assert [one["quarantine"] for one in slots] == [None, None]


async def test_checkpoints_have_a_page_that_the_jobs_page_reads(harness: Harness) -> None:
    await two_projects(harness)
    job = await harness.job("job-of-vision")
    assert f'data-from="/jobs/{job.id}/checkpoints"' in (await harness.client.get(f"/jobs/{job.id}")).text
    path = f"/jobs/{job.id}/checkpoints"
    assert "No checkpoint was saved" in (await harness.client.get(path)).text
    for number in range(30):
        name = Name(1, 0, number)
        manifest = Manifest(generation=1, epoch=0, samples_in_epoch=number, samples=7000 + number, parts=())
        sealed = manifest.to_text() if number < 29 else b"<script>"
        await harness.service.storage.put(f"checkpoints/{job.id}/{name}/manifest.json", sealed)
    page = (await harness.client.get(path)).text
    assert "its manifest is damaged" in page
    assert page.count("would be restored") == 1
    assert "7,028" in page
    assert "7,003" not in page
    older = re.search(rf'href="({path}\?cursor=[^"]+)"', page)
    assert older is not None
    rest = (await harness.client.get(older[1])).text
    assert "7,003" in rest
    assert "would be restored" not in rest
    async with await browser(harness, Role.USER, "speech") as stranger:
        assert (await stranger.get(path)).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("GET", "/jobs?state=nonsense", "", 422, "not right"),
        ("GET", "/jobs/none", "", 404, "none"),
        ("GET", "/jobs?cursor=%00", "", 422, "cursor"),
        ("GET", "/jobs/none/checkpoints", "", 404, "none"),
        ("GET", "/nodes/none", "", 404, "No node"),
        ("GET", "/live/nothing", "", 200, "gone"),
        ("POST", "/nodes/none/drain", "sure=yes", 404, "none"),
        ("POST", "/jobs/none/prioritize", "sure=yes&priority=1", 404, "none"),
        ("POST", "/cluster/policy", "sure=yes&policy=nonsense", 422, "nonsense"),
        ("POST", "/cluster/policy", "sure=yes&policy=goodput&parameters=x", 422, "name=number"),
        ("POST", "/nodes/alpha/explode", "sure=yes", 404, "explode"),
        ("POST", "/nodes/alpha/slots/0/explode", "sure=yes", 404, "explode"),
        ("POST", "/nodes/none/slots/0/quarantine", "sure=yes", 404, "none"),
        ("POST", "/nodes/alpha/slots/-1/quarantine", "sure=yes", 422, "not right"),
        ("POST", "/nodes/alpha/slots/0/quarantine", "sure=yes&why=" + "x" * 1001, 422, "1000"),
        ("POST", "/submit", "job=name%3A+%5B&what=submit", 422, "job file"),
        ("POST", "/submit", "job=name%3A+a%0Arun%3A+b%0Aproject%3A+none&what=submit", 422, "none"),
        ("POST", "/simulations", "change=nonsense", 422, "Choose"),
        ("POST", "/simulations", "change=add_nodes&device_kind=cpu&nodes=x", 422, "integer"),
    ],
)
async def test_what_is_wrong_is_said_on_a_page(
    harness: Harness, method: str, path: str, body: str, status: int, says: str
) -> None:
    answer = await harness.client.request(method, path, content=body, headers=FORM)
    assert answer.status_code == status, answer.text
    assert says in answer.text
    assert answer.headers["content-type"].startswith(("text/html", "text/event-stream"))


async def test_a_plan_says_what_it_costs_and_stores_nothing(harness: Harness) -> None:
    await harness.join("alpha", slots=2)
    answer = await harness.client.post(
        "/submit", content="job=name%3A+a%0Arun%3A+python+-V&what=plan", headers=FORM
    )
    assert answer.status_code == 200
    assert 'id="plan"' in answer.text
    assert "<table>" in answer.text
    assert (await harness.client.get("/api/v1/jobs")).json()["items"] == []


async def test_a_stream_says_what_changes(harness: Harness) -> None:
    console: PageContext = harness.client._transport.app.state.console  # type: ignore[attr-defined]
    key = Key("jobs", Viewer(None, may_control=True, may_operate=True))
    first = await console.live_pages.current(key)
    async with aclosing(console.live_pages.follow(key, first.version)) as events:
        assert "event: beat" in await anext(events)
        job = await harness.submit("new-one")
        async for event in events:
            if "event: patch" in event:
                break
    patch = json.loads(event.split("data: ")[1])
    assert patch["orders"]["rows"] == [f"job-{job.id}"]
    assert "new-one" in patch["pieces"][f"job-{job.id}"]


async def test_assets_are_kept_by_browsers_and_change_their_address(harness: Harness) -> None:
    console: PageContext = harness.client._transport.app.state.console  # type: ignore[attr-defined]
    kept = await harness.client.get(f"/static/{console.assets}/console.css")
    assert "max-age=31536000" in kept.headers["cache-control"]
    plain = await harness.client.get("/static/console.css")
    assert "max-age=300" in plain.headers["cache-control"]
    assert (await harness.client.get("/static/../templates.py")).status_code == 404


@pytest.mark.parametrize("path", ["/help/nope", "/nope", "/help/errors/not_found"])
async def test_an_unknown_address_is_a_page_for_browsers_and_a_problem_for_others(
    harness: Harness, path: str
) -> None:
    page = await harness.client.get(path, headers={"accept": "text/html"})
    assert (page.status_code, page.headers["content-type"].partition(";")[0]) == (404, "text/html")
    assert 'href="/help"' in page.text
    problem = await harness.client.get(path)
    assert (problem.status_code, problem.json()["code"]) == (404, "not_found")
    api = await harness.client.get(f"/api/v1{path}", headers={"accept": "text/html"})
    assert (api.status_code, api.json()["code"]) == (404, "not_found")


async def test_a_format_character_in_a_command_does_not_act_on_the_page(harness: Harness) -> None:
    await harness.submit(run="echo a\u202eb")
    page = (await harness.client.get("/jobs/job")).text
    assert "\u202e" not in page


async def test_a_form_shows_what_was_entered_unchanged(harness: Harness) -> None:
    entered = "name: [\r\nrun: echo a\u202eb\r\n"
    page = (await harness.client.post("/submit", data={"job": entered, "act": "forecast"})).text
    assert "echo a\u202eb\r\n" in page
