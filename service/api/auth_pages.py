"""The pages of signing in and out: plain forms that work without scripts."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Headway</title>
<script src="/static/theme.js"></script>
<link rel="stylesheet" href="/static/console.css">
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
</head>
<body>
<main class="sign-in">
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""


def sign_in_page(*, return_to: str, problem: str | None, with_provider: bool) -> str:
    """The form that takes a token; with a link to the provider where there is one."""
    parts = [f'<p class="caution" role="alert">{escape(problem)}</p>'] if problem else []
    if with_provider:
        parts.append(
            f'<p><a href="/auth/login?return_to={escape(quote(return_to, safe="/"))}">Sign in</a></p>'
        )
    parts.append(
        '<form method="post" action="/auth/login">'
        f'<input type="hidden" name="return_to" value="{escape(return_to)}">'
        '<p><label for="token">Token</label> '
        '<input id="token" name="token" type="password" autocomplete="off" required autofocus></p>'
        '<p><button type="submit" class="button primary">Sign in with a token</button></p>'
        "<p>Make one with <code>headway token create</code>; <code>headway up</code> prints the first one.</p>"
        "</form>"
    )
    return _PAGE.format(title="Sign in", body="\n".join(parts))


def signed_out_page() -> str:
    """What is shown once a session has ended."""
    return _PAGE.format(title="Signed out", body='<p><a href="/auth/login">Sign in again</a></p>')
