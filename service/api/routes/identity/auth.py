"""Sign-in: `/auth` for browsers, `/api/v1/sign-in` for command lines."""

from __future__ import annotations

import hmac
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from headway.contract.views.identity import NewToken, SignInLink, SignInRequest, SignInView
from service.api.http.access import SIGNED_IN, Caller, identities_of
from service.api.http.context import ApiContext, Context, new_id
from service.api.http.problems import PROBLEM, STATUS
from service.api.http.render import as_json
from service.api.http.sessions import check_same_origin, end_session, form_of, session_of, start_session
from service.api.routes.identity.auth_pages import link_page, sign_in_page, signed_out_page
from service.domain.identity.sign_in import LOGIN, safe_return
from service.domain.shared.errors import Forbidden, HeadwayServiceError, NotFound, Unavailable, WrongToken
from service.http_settings import OidcSettings
from service.usecases.identity.identify import Identities
from service.usecases.identity.sign_in import (
    Ids,
    SignedIn,
    begin_login,
    exchange,
    finish_login,
    make_link,
    sign_in_with_token,
    sign_out,
    use_link,
)
from service.usecases.ports.identity import IdentityProvider

router = APIRouter(tags=["access"])
_LOGIN_COOKIE = "headway-login"
_EXPECTED = (WrongToken, Forbidden, Unavailable, NotFound)
"""Errors that the sign-in page shows, because the user can act on them."""


@router.get("/auth/login", include_in_schema=False)
async def login(context: Context, return_to: str | None = None, using: str | None = None) -> Response:
    """Redirect to the identity provider.

    Without a provider, or with `using=token`, return the page that accepts a token.
    """
    if context.provider is None or using == "token":
        return _page(context, return_to, problem=None)
    try:
        url, state = await begin_login(
            context.transactions,
            context.provider,
            return_to=return_to,
            redirect_uri=_redirect_uri(context),
            now=context.now(),
        )
    except Unavailable as error:
        return _page(context, return_to, problem=error)
    response = RedirectResponse(url, 303)
    response.set_cookie(
        _LOGIN_COOKIE,
        state,
        max_age=int(LOGIN.total_seconds()),
        path="/auth",
        secure=context.http.secure,
        httponly=True,
        samesite="lax",
    )
    return response


@router.get("/auth/callback", include_in_schema=False)
async def callback(
    request: Request,
    context: Context,
    state: str = "",
    code: str = "",
    error: str = "",
    iss: str | None = None,
) -> Response:
    """Finish the sign-in of a browser that returns from the identity provider."""
    try:
        _check_callback(request, context, state=state, code=code, error=error, issuer=iss)
        provider, oidc = _provider(context)
        session = await finish_login(
            context.transactions,
            provider,
            oidc.rules,
            state=state,
            code=code,
            redirect_uri=_redirect_uri(context),
            ids=_ids(context),
            now=context.now(),
        )
    except _EXPECTED as problem:
        response = _page(context, None, problem=problem)
    else:
        response = _signed_in(context, session)
    response.delete_cookie(
        _LOGIN_COOKIE, path="/auth", secure=context.http.secure, httponly=True, samesite="lax"
    )
    return response


def _check_callback(
    request: Request, context: ApiContext, *, state: str, code: str, error: str, issuer: str | None
) -> None:
    """Raise WrongToken unless the sign-in began in this browser and the provider accepted it.

    The browser's cookie must have the state, and the issuer must be the configured provider.
    """
    _, oidc = _provider(context)
    state_of_browser = request.cookies.get(_LOGIN_COOKIE, "")
    if not state_of_browser or not hmac.compare_digest(state_of_browser.encode(), state.encode()):
        raise WrongToken("this sign-in did not begin in this browser, or has expired; sign in again.")
    if issuer is not None and issuer != oidc.issuer:
        raise WrongToken(
            "the browser comes from an identity provider that this service does not use; sign in again."
        )
    if error or not code:
        raise WrongToken(
            f"the identity provider refused the sign-in ({error[:100] or 'no code'}); sign in again."
        )


@router.post("/auth/login", include_in_schema=False)
async def login_with_token(
    request: Request, context: Context, identities: Annotated[Identities, Depends(identities_of)]
) -> Response:
    """Start a session for a token that was entered on the sign-in page."""
    form = await form_of(request)
    return_to = form.get("return_to")
    try:
        await check_same_origin(request, None)
        principal = await identities.identify(form.get("token", "").strip())
        session = await sign_in_with_token(
            context.transactions,
            principal,
            return_to=return_to,
            token_id=new_id("t", context.now()),
            now=context.now(),
        )
    except _EXPECTED as problem:
        return _page(context, return_to, problem=problem)
    return _signed_in(context, session)


@router.post(
    "/api/v1/sign-in/links",
    operation_id="create_sign_in_link",
    status_code=201,
    response_model=SignInLink,
    responses={401: PROBLEM, 403: PROBLEM, 503: PROBLEM},
    **SIGNED_IN,
)
async def create_sign_in_link(context: Context, caller: Caller) -> Response:
    """Create a link that signs one browser in as the bearer of the token. It works once, within two minutes."""
    now = context.now()
    code, expires_at = await make_link(context.transactions, caller, token_id=new_id("t", now), now=now)
    # Without TLS, the command line prepends the address by which it reaches the service.
    base = context.http.public_url if context.http.secure else ""
    url = f"{base}/auth/link?code={code}"
    return as_json(SignInLink(url=url, expires_at=expires_at), 201)


@router.get("/auth/link", include_in_schema=False)
async def ask_before_link(code: Annotated[str, Query(max_length=100)] = "") -> Response:
    """Return a page with a button, so that link previews (mail, chats) do not use the link up."""
    return HTMLResponse(link_page(code))


@router.post("/auth/link", include_in_schema=False)
async def login_with_link(request: Request, context: Context) -> Response:
    """Start a session for a browser that presents the code of a link."""
    form = await form_of(request)
    try:
        await check_same_origin(request, None)
        session = await use_link(context.transactions, form.get("code", ""), context.now())
    except _EXPECTED as problem:
        return _page(context, None, problem=problem)
    return _signed_in(context, session)


@router.post("/auth/logout", include_in_schema=False)
async def logout(request: Request, context: Context) -> Response:
    """End the session of this browser."""
    session = session_of(request)
    await check_same_origin(request, session)
    if session is not None:
        await sign_out(context.transactions, session, context.now())
    response = RedirectResponse("/auth/signed-out", 303)
    end_session(context, response)
    return response


@router.get("/auth/signed-out", include_in_schema=False)
async def signed_out() -> Response:
    """Return the page after the end of a session."""
    return HTMLResponse(signed_out_page())


@router.get("/api/v1/sign-in", operation_id="get_sign_in", response_model=SignInView)
async def get_sign_in(context: Context) -> Response:
    """Return the ways to sign in to this service. Needs no token."""
    oidc = context.http.oidc
    if oidc is None:
        return as_json(SignInView(issuer=None, client_id=None))
    client_id = oidc.device_client_id or oidc.client_id
    return as_json(SignInView(issuer=oidc.issuer, client_id=client_id, scopes=list(oidc.scopes)))


@router.post(
    "/api/v1/sign-in",
    operation_id="sign_in",
    status_code=201,
    response_model=NewToken,
    responses={401: PROBLEM, 403: PROBLEM, 404: PROBLEM, 503: PROBLEM},
)
async def sign_in(context: Context, request: SignInRequest) -> Response:
    """Return a token in exchange for the identity token that the provider issued to a command line."""
    provider, oidc = _provider(context)
    token = await exchange(
        context.transactions,
        provider,
        oidc.rules,
        id_token=request.id_token,
        name=request.name,
        ids=_ids(context),
        now=context.now(),
    )
    return as_json(token, 201)


def _provider(context: ApiContext) -> tuple[IdentityProvider, OidcSettings]:
    if context.provider is None or context.http.oidc is None:
        raise NotFound("this service uses no identity provider; sign in with a token (headway login).")
    return context.provider, context.http.oidc


def _redirect_uri(context: ApiContext) -> str:
    return f"{context.http.public_url}/auth/callback"


def _ids(context: ApiContext) -> Ids:
    return Ids(token=new_id("t", context.now()), user=new_id("u", context.now()))


def _signed_in(context: ApiContext, session: SignedIn) -> Response:
    response = RedirectResponse(quote(session.return_to, safe="/?&=%#:+,;@~!$'()*-._"), 303)
    start_session(context, response, session.token, session.expires_at)
    return response


def _page(context: ApiContext, return_to: str | None, *, problem: HeadwayServiceError | None) -> Response:
    return HTMLResponse(
        sign_in_page(
            return_to=safe_return(return_to),
            problem=None if problem is None else problem.message,
            with_provider=context.provider is not None,
        ),
        200 if problem is None else STATUS[type(problem)],
    )
