"""Pages for signing in and out: plain forms that work without scripts."""

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

_HELP = """<div class="help">
<h2>Where to find a token</h2>
<ul>
<li><code>headway up</code> keeps the first token in the file <code>admin-token</code> of its data folder, which is
<code>~/.headway</code> unless you named another.</li>
<li>On a machine where <code>headway</code> is signed in, <code>headway token create NAME</code> shows a new token once.</li>
<li><code>headway login --browser</code>, wherever <code>headway</code> is signed in, opens a link that signs this browser in once, and
no token has to be typed.</li>
<li>Otherwise ask an admin of this service.</li>
</ul>
<p>This browser stores no secret except a cookie, which ends with the session. <a href="/help">More help</a></p>
</div>"""


def sign_in_page(*, return_to: str, problem: str | None, with_provider: bool) -> str:
    """Return the form that accepts a token, with a link to the identity provider if there is one."""
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
        "</form>"
    )
    parts.append(_HELP)
    return _PAGE.format(title="Sign in", body="\n".join(parts))


def link_page(code: str) -> str:
    """Return the page behind a link of `headway login --browser`, with a button that signs the browser in."""
    body = (
        "<p>The command line created this link. It signs this browser in once.</p>"
        '<form method="post" action="/auth/link">'
        f'<input type="hidden" name="code" value="{escape(code)}">'
        '<p><button type="submit" class="button primary" autofocus>Sign in</button></p>'
        "</form>"
    )
    return _PAGE.format(title="Sign in", body=body)


def signed_out_page() -> str:
    """Return the page after the end of a session."""
    return _PAGE.format(title="Signed out", body='<p><a href="/auth/login">Sign in again</a></p>')
