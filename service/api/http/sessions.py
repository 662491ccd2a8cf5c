"""Sessions of browsers: their cookie, and the protection against cross-site requests.

A browser also sends cookies with requests that pages of other sites trigger. A change authorised by a cookie
must therefore come from a page of this service. Browsers tell the origin in `Sec-Fetch-Site` or `Origin`,
which no page can forge. A client that sends neither must send the session's `csrf_token`, in the header
`X-CSRF-Token` or in a form.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime
from urllib.parse import parse_qsl, urlsplit

from fastapi import Request
from fastapi.responses import Response

from service.api.http.context import ApiContext
from service.domain.shared.errors import Forbidden, TooLarge

CSRF_FIELD = "csrf_token"
SESSION_COOKIES = ("__Host-headway", "headway")
"""Names of the session cookie, with TLS and without."""
_CSRF_HEADER = "x-csrf-token"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FORM = "application/x-www-form-urlencoded"
_LONGEST_FORM_BYTES = 256 << 10
_MOST_FIELDS = 100


def cookie_name(context: ApiContext) -> str:
    """Return the name of the session cookie.

    With TLS, browsers refuse a cookie of this name that another host or path sets.
    """
    return SESSION_COOKIES[0 if context.http.secure else 1]


def session_of(request: Request) -> str | None:
    """Return the session token that the browser sent, or None."""
    context: ApiContext = request.app.state.context
    return request.cookies.get(cookie_name(context)) or None


def start_session(context: ApiContext, response: Response, token: str, expires_at: datetime) -> None:
    """Set the session cookie until the session expires."""
    response.set_cookie(
        cookie_name(context),
        token,
        max_age=max(0, round((expires_at - context.now()).total_seconds())),
        path="/",
        secure=context.http.secure,
        httponly=True,
        samesite="lax",
    )


def end_session(context: ApiContext, response: Response) -> None:
    """Delete the session cookie of the browser."""
    response.delete_cookie(
        cookie_name(context), path="/", secure=context.http.secure, httponly=True, samesite="lax"
    )


def csrf_token(session: str) -> str:
    """Return the token in forms of a session.

    It is derived from the session token, which pages of other sites cannot read.
    """
    return hmac.new(session.encode(), b"csrf", hashlib.sha256).hexdigest()


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a posted form; the last value of each name counts. Raises TooLarge."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return {}
    if int(request.headers.get("content-length", "0") or 0) > _LONGEST_FORM_BYTES:
        raise TooLarge(f"a form may have {_LONGEST_FORM_BYTES} bytes at most; send less")
    body = await request.body()
    if body.count(b"&") >= _MOST_FIELDS:
        raise TooLarge(f"a form may have {_MOST_FIELDS} fields at most; send fewer")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


async def check_same_origin(request: Request, session: str | None) -> None:
    """Raise Forbidden for a change that no page of this service has triggered."""
    if request.method in _SAFE or _from_our_page(request):
        return
    if session is not None and "origin" not in request.headers and "sec-fetch-site" not in request.headers:
        shown = request.headers.get(_CSRF_HEADER) or (await form_of(request)).get(CSRF_FIELD, "")
        if hmac.compare_digest(shown.encode(), csrf_token(session).encode()):
            return
    raise Forbidden(
        "this request was not made by a page of this service, so nothing was done; open the page again and repeat it, "
        "or use a token (Authorization: Bearer) in place of the browser's session."
    )


def _from_our_page(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in {"same-origin", "none"}
    origin = request.headers.get("origin")
    if origin is None:
        return False
    context: ApiContext = request.app.state.context
    public = urlsplit(context.http.public_url)
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    return origin in {f"{public.scheme}://{public.netloc}", own}
