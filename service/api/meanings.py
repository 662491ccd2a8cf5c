"""`/help`: what every reason and every error code means, for whoever follows the link in an answer. No token is asked for."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from headway.contract.meanings import ERRORS, REASONS, Meaning

router = APIRouter(prefix="/help", include_in_schema=False)


@router.get("/reasons")
async def reasons() -> HTMLResponse:
    """All reasons."""
    return HTMLResponse(help_page("Reasons", {reason.value: one for reason, one in REASONS.items()}))


@router.get("/errors")
async def errors() -> HTMLResponse:
    """All error codes."""
    return HTMLResponse(help_page("Errors", ERRORS))


def help_page(title: str, meanings: Mapping[str, Meaning]) -> str:
    """One page with an anchor for each of them."""
    parts = [
        f'<section id="{html.escape(code)}"><h2><code>{html.escape(code)}</code></h2>'
        f"<p>{_marked(one.means)}</p><p><strong>What to do.</strong> {_marked(one.do)}</p></section>"
        for code, one in sorted(meanings.items())
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title} - Headway</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<script src="/static/theme.js"></script><link rel="stylesheet" href="/static/console.css">'
        f"</head><body><main><h1>{title}</h1>{''.join(parts)}</main></body></html>"
    )


def _marked(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
