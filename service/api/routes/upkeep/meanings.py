"""`/help`: first steps, and the meaning of every reason and error code. Needs no token."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from headway.contract.views.meanings import ERRORS, REASONS, Meaning

router = APIRouter(prefix="/help", include_in_schema=False)


_FIRST_STEPS = (
    (
        "Sign in",
        "The [sign-in page](/auth/login) accepts a token and says where to find one.",
    ),
    (
        "Submit a job",
        "The [submit page](/submit) has an example that runs unchanged, and predicts its time and cost. On a command line: "
        "`headway submit JOB.yaml --wait`.",
    ),
    (
        "Find out why a job waits or changed",
        "The job's page begins with the reason for its present slots; `headway explain JOB` has more "
        "detail. The [rounds page](/rounds) shows slots over time, and every change with its reason.",
    ),
    (
        "When a job fails",
        "`headway logs JOB` shows its output, `headway events JOB` its history. The pages below explain the codes.",
    ),
    (
        "When nothing works",
        "`headway doctor` checks this machine, the service and its agents, and says what to do.",
    ),
)
_PAGES = (
    ("/help/reasons", "Reasons", "Each reason that a job can give for its state, and what to do about it."),
    ("/help/errors", "Errors", "Each error code of the API, and what to do about it."),
    ("/docs", "API", "Every route with an example; it can be tried with a token."),
    ("/redoc", "API for reading", "The same as one page."),
)


@router.get("")
async def index() -> HTMLResponse:
    """Return the help page with the first steps."""
    return HTMLResponse(index_page())


def index_page() -> str:
    """Return the page that leads to all other help."""
    steps = "".join(
        f"<section><h2>{title}</h2><p>{_marked(text)}</p></section>" for title, text in _FIRST_STEPS
    )
    pages = "".join(
        f'<li><a href="{path}">{title}</a>: {html.escape(text)}</li>' for path, title, text in _PAGES
    )
    more = f'<section><h2>Look it up</h2><ul class="plain">{pages}</ul></section>'
    return _page("Help", '<p><a href="/">To the console</a></p>' + steps + more)


@router.get("/reasons")
async def reasons() -> HTMLResponse:
    """Return the page with all reasons."""
    return HTMLResponse(help_page("Reasons", {reason.value: one for reason, one in REASONS.items()}))


@router.get("/errors")
async def errors() -> HTMLResponse:
    """Return the page with all error codes."""
    return HTMLResponse(help_page("Errors", ERRORS))


def help_page(title: str, meanings: Mapping[str, Meaning]) -> str:
    """Return a page with an anchor for each code."""
    parts = [
        f'<section id="{html.escape(code)}"><h2><code>{html.escape(code)}</code></h2>'
        f"<p>{_marked(one.means)}</p><p><strong>What to do.</strong> {_marked(one.do)}</p></section>"
        for code, one in sorted(meanings.items())
    ]
    return _page(title, '<p><a href="/help">All help</a></p>' + "".join(parts))


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title} - Headway</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<script src="/static/theme.js"></script><link rel="stylesheet" href="/static/console.css">'
        f"</head><body><main><h1>{title}</h1>{body}</main></body></html>"
    )


def _marked(text: str) -> str:
    """Escape a text, and turn `words` into code and [words](/path) into links."""
    coded = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return re.sub(r"\[([^]]+)\]\((/[a-z/-]*)\)", r'<a href="\2">\1</a>', coded)
