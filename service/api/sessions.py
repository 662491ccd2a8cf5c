"""Sessions of browsers: the cookie that carries one, and what a request with a cookie must show before it may change anything.

A browser sends cookies with requests that pages of others make it send. So a request that changes something and is authorised
by a cookie must come from a page of this service: browsers say so in `Sec-Fetch-Site` or `Origin`, which no page can forge. One
that sends neither must show the session's own `csrf_token`, in the header `X-CSRF-Token` or in a form.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime
from urllib.parse import parse_qsl, urlsplit

from fastapi import Request
from fastapi.responses import Response

from service.api.context import ApiContext
from service.domain.errors import Forbidden, TooLarge

CSRF_FIELD = "csrf_token"
SESSION_COOKIES = ("__Host-headway", "headway")
"""With TLS, and without."""
_CSRF_HEADER = "x-csrf-token"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FORM = "application/x-www-form-urlencoded"
_LONGEST_FORM_BYTES = 256 << 10


def cookie_name(context: ApiContext) -> str:
    """Of the session. With TLS its name makes browsers refuse one that another host or path has set."""
    return SESSION_COOKIES[0 if context.http.secure else 1]


def session_of(request: Request) -> str | None:
    """The session token that a browser has sent."""
    context: ApiContext = request.app.state.context
    return request.cookies.get(cookie_name(context)) or None


def start_session(context: ApiContext, response: Response, token: str, expires_at: datetime) -> None:
    """Have a browser keep a session until it expires."""
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
    """Have a browser forget its session."""
    response.delete_cookie(
        cookie_name(context), path="/", secure=context.http.secure, httponly=True, samesite="lax"
    )


def csrf_token(session: str) -> str:
    """What forms of a session carry. It follows from the session, which a page of others cannot read."""
    return hmac.new(session.encode(), b"csrf", hashlib.sha256).hexdigest()


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a posted form; the last one of each name. Raises TooLarge."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return {}
    if int(request.headers.get("content-length", "0") or 0) > _LONGEST_FORM_BYTES:
        raise TooLarge(f"a form may be {_LONGEST_FORM_BYTES} bytes at most")
    body = await request.body()
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=100))


async def check_same_origin(request: Request, session: str | None) -> None:
    """Let only those requests change something that a page of this service has made. Raises Forbidden."""
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
