"""Words beside the verbs: aliases, words of other tools, and signing a browser in."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from headway.contract.views.identity import SignInLink
from headway.contract.views.jobs import JobState
from tests.unit.headway.cli.test_verbs import run
from tests.unit.headway.stub import NOW, StubService, job_view, ok, page


@pytest.fixture
def service() -> StubService:
    return StubService()


@pytest.mark.parametrize(
    ("word", "near"), [("delete", "cancel"), ("list", "ps"), ("submti", "submit"), ("released", "release")]
)
def test_a_word_that_is_no_verb_is_answered_with_the_one_that_is_meant(
    service: StubService, word: str, near: str
):
    result = run(service, word, "digits")
    assert result.exit_code == 2
    assert f"Did you mean '{near}'?" in " ".join(result.stderr.split())


@pytest.mark.parametrize("alias", ["ls", "status"])
def test_aliases_list_jobs(service: StubService, alias: str):
    service.on("GET /api/v1/jobs", page(job_view(present="2 slots, fixed by you")))
    assert "2 slots, fixed by you" in run(service, alias).stdout


def test_aliases_of_one_job(service: StubService):
    service.on("GET /api/v1/jobs/digits", ok(job_view()))
    service.on("GET /api/v1/jobs/j1/events", page())
    assert run(service, "status", "digits").stdout == run(service, "describe", "digits").stdout
    service.on("POST /api/v1/jobs/digits/cancel", ok(job_view(JobState.CANCELLING), 202))
    for alias in ("stop", "rm"):
        assert run(service, alias, "digits", "--force").exit_code == 0
    assert len(service.sent("POST /api/v1/jobs/digits/cancel")) == 2


def test_a_browser_is_signed_in_by_a_link(service: StubService):
    link = SignInLink(url="/auth/link?code=hw_x", expires_at=NOW + timedelta(minutes=2))
    service.on("POST /api/v1/sign-in/links", ok(link, 201))
    opened: list[str] = []
    result = run(service, "login", "--browser", browse=lambda url: not opened.append(url))
    assert (result.exit_code, opened) == (0, ["http://stub/auth/link?code=hw_x"])
    assert result.stdout.strip() == opened[0]
    assert "works once, for 2m00s" in result.stderr
    assert run(service, "login", "--browser", "--token").exit_code == 1


@pytest.mark.parametrize("words", [("login",), ("budget", "set"), ("whatif",), ("logs",)])
def test_the_help_is_wrapped_by_the_terminal_and_not_by_the_source(
    service: StubService, words: tuple[str, ...]
):
    """Where a line ends early, the next word would not have fitted."""
    text = run(service, *words, "--help").stdout.split("╭")[0].split("Usage:")[1]
    lines = [line.strip() for line in text.splitlines()]
    for line, following in pairwise(lines):
        if line and following:
            assert len(line) + len(following.split()[0]) + 1 > 72, line


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("exec digits ls -l", "-l is no option of `headway exec`. Put -- before the command"),
        ("exec digits --rnak 3 ls", "--rnak is no option of `headway exec`"),
        ("resize digits -1", "-1 is negative, which no argument of `headway resize` may be"),
        ("priority digits -0.5", "-0.5 is negative"),
        ("logs digits --tail -1", "-1 is not in the range"),
    ],
)
def test_a_misread_argument_is_refused_with_its_meaning(service: StubService, line: str, said: str):
    result = run(service, *line.split())
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())
