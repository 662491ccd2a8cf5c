"""Sign-in of people, at an identity provider or with an existing token.

Each sign-in creates a token of its own.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass, replace
from datetime import datetime

from headway.contract.views.identity import EVERYWHERE, NewToken
from service.domain.identity.access import Principal
from service.domain.identity.sign_in import (
    LINK,
    LOGIN,
    SESSION,
    Account,
    AdmissionRules,
    Claims,
    admit,
    safe_return,
)
from service.domain.shared.errors import WrongToken
from service.usecases.identity.tokens import new_token, token_made
from service.usecases.nodes.join import digest_token
from service.usecases.ports.facts import WakeUp
from service.usecases.ports.identity import IdentityProvider, Login, TokenRecord, session_of_token
from service.usecases.ports.transactions import Transaction, Transactions


@dataclass(frozen=True, slots=True)
class Ids:
    """Ids for a new token and a new user."""

    token: str
    user: str


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A new session: `token` is the value of the cookie, `return_to` the page that the browser wanted."""

    token: str
    expires_at: datetime
    return_to: str


async def begin_login(
    transactions: Transactions,
    provider: IdentityProvider,
    *,
    return_to: str | None,
    redirect_uri: str,
    now: datetime,
) -> tuple[str, str]:
    """Begin a sign-in at the provider. Return its URL and the state that the browser must bring back.

    The browser's cookie must hold the same state. Otherwise an attacker could make a victim finish the
    attacker's own login.

    Raises:
        Unavailable: the provider does not answer.
    """
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    url = await provider.authorization_url(
        state=state, nonce=nonce, challenge=challenge, redirect_uri=redirect_uri
    )
    login = Login(
        state_sha256=digest_token(state),
        verifier=verifier,
        nonce=nonce,
        return_to=safe_return(return_to),
        expires_at=now + LOGIN,
    )
    async with transactions.begin() as tx:
        await tx.users.begin_login(login)
    return url, state


async def finish_login(
    transactions: Transactions,
    provider: IdentityProvider,
    rules: AdmissionRules,
    *,
    state: str,
    code: str,
    redirect_uri: str,
    ids: Ids,
    now: datetime,
) -> SignedIn:
    """Finish a sign-in when the browser is back from the provider. Return the session.

    Raises:
        WrongToken: the state is unknown, used or too old; the provider refuses the code; its token is not
            valid.
        Forbidden: the admission rules do not admit the user.
        Unavailable: the provider does not answer.
    """
    async with transactions.begin() as tx:
        login = await tx.users.take_login(digest_token(state))
    if login is None or login.expires_at <= now:
        raise WrongToken("this sign-in has expired or was used already; sign in again.")
    id_token = await provider.redeem(code, verifier=login.verifier, redirect_uri=redirect_uri)
    claims = await provider.verify(id_token, nonce=login.nonce, now=now)
    async with transactions.begin() as tx:
        account = await _admit(tx, claims, rules, ids.user, now)
        token, record = _session(account, ids.token, name="browser", method="provider", now=now)
        tx.audit.by(account.name, record.id)
        await tx.tokens.add(record, digest_token(token))
    return SignedIn(token, now + SESSION, login.return_to)


async def exchange(
    transactions: Transactions,
    provider: IdentityProvider,
    rules: AdmissionRules,
    *,
    id_token: str,
    name: str,
    ids: Ids,
    now: datetime,
) -> NewToken:
    """Exchange an identity token of the provider for a token for the command line.

    Tokens from a browser's sign-in have a nonce and are refused.

    Raises:
        WrongToken, Forbidden, Unavailable: as `finish_login`.
    """
    claims = await provider.verify(id_token, nonce=None, now=now)
    async with transactions.begin() as tx:
        account = await _admit(tx, claims, rules, ids.user, now)
        token, record = _session(account, ids.token, name=name, method=None, now=now)
        tx.audit.by(account.name, record.id)
        await tx.tokens.add(record, digest_token(token))
    return token_made(record, token, user=account.name)


async def sign_in_with_token(
    transactions: Transactions, principal: Principal, *, return_to: str | None, token_id: str, now: datetime
) -> SignedIn:
    """Return a session for the bearer of a token, with the token's rights and no longer lifetime.

    The bearer of the service's own token becomes a robot with its role.
    """
    token = new_token()
    expires_at = min(now + SESSION, principal.expires_at or now + SESSION)
    async with transactions.begin() as tx:
        record = await _session_with_token(tx, principal, token_id, now=now, expires_at=expires_at)
        await tx.tokens.add(record, digest_token(token))
    return SignedIn(token, expires_at, safe_return(return_to))


async def make_link(
    transactions: Transactions, principal: Principal, *, token_id: str, now: datetime
) -> tuple[str, datetime]:
    """Create the code of a link that signs a browser in as the bearer of a token. Return the code and its expiry.

    The session is stored at once, under a digest that no token has. No browser can use it before the link is
    used.
    """
    code = new_token()
    expires_at = min(now + LINK, principal.expires_at or now + LINK)
    async with transactions.begin() as tx:
        record = await _session_with_token(tx, principal, token_id, now=now, expires_at=expires_at)
        await tx.tokens.add(record, _digest_link(code))
    return code, expires_at


async def use_link(transactions: Transactions, code: str, now: datetime) -> SignedIn:
    """Sign a browser in with the code of a link, which works once. Raise WrongToken if it is not valid."""
    token = new_token()
    async with transactions.begin() as tx:
        record = await tx.tokens.renew(_digest_link(code), digest_token(token), now=now, until=now + SESSION)
        if record is None or record.expires_at is None or record.expires_at <= now:
            raise WrongToken(
                "this link has expired or was used already; create another one: headway login --browser."
            )
        tx.audit.by(record.created_by, record.id)
    return SignedIn(token, record.expires_at, "/")


def _digest_link(code: str) -> str:
    return digest_token(f"link {code}")


async def _session_with_token(
    tx: Transaction, principal: Principal, token_id: str, *, now: datetime, expires_at: datetime
) -> TokenRecord:
    """Return a browser session with the rights and the expiry of the presented token.

    Raise WrongToken if it was revoked meanwhile.
    """
    tx.audit.by(principal.name, principal.token_id)
    session = TokenRecord(
        id=token_id,
        name="browser",
        user_id=None,
        role=principal.role_in(EVERYWHERE),
        session="token",
        created_by=principal.name,
        created_at=now,
        expires_at=expires_at,
    )
    if principal.token_id is None:
        return session
    presented = await tx.tokens.lock(principal.token_id)
    if presented.revoked_at is not None:
        raise WrongToken("this token was revoked; `headway login` gets another one.")
    return replace(
        session,
        user_id=presented.user_id,
        role=presented.role,
        project=presented.project,
        session=session_of_token(presented.id),
    )


async def sign_out(transactions: Transactions, token: str, now: datetime) -> None:
    """End the session of a cookie. A session that is already over is not an error."""
    async with transactions.begin() as tx:
        bearer = await tx.tokens.of_digest(digest_token(token))
        if bearer is not None and bearer.token.session is not None:
            tx.audit.by(bearer.user_name or bearer.token.created_by, bearer.token.id)
            await tx.tokens.revoke(bearer.token.id, now)
            tx.wake(WakeUp.ACCESS)


async def _admit(
    tx: Transaction, claims: Claims, rules: AdmissionRules, new_user_id: str, now: datetime
) -> Account:
    known = await tx.users.account(claims)
    admission = admit(claims, known, rules)
    account = Account(
        id=new_user_id if known is None else known.id,
        name=admission.name,
        issuer=claims.issuer,
        subject=claims.subject,
    )
    if admission.binds:
        await tx.users.admit(account, admission.roles, now)
    return account


def _session(
    account: Account, token_id: str, *, name: str, method: str | None, now: datetime
) -> tuple[str, TokenRecord]:
    """Return a new token and its record for a user who has just authenticated."""
    record = TokenRecord(
        id=token_id,
        name=name,
        user_id=account.id,
        role=None,
        session=method,
        created_by=account.name,
        created_at=now,
        expires_at=now + SESSION,
    )
    return new_token(), record
