"""People sign in: at an identity provider, or with a token that they have. A sign-in ends as a token of its own."""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime

from headway.contract.identity import EVERYWHERE, NewToken
from service.domain.access import Principal
from service.domain.errors import WrongToken
from service.domain.sign_in import LOGIN, SESSION, Account, AdmissionRules, Claims, admit, safe_return
from service.usecases.identity_ports import TokenRecord, session_of_token
from service.usecases.join import digest_token
from service.usecases.ports import Transaction, Transactions
from service.usecases.records import Bell
from service.usecases.sign_in_ports import IdentityProvider, Login

PREFIX = "hw_"
"""Of every token that people carry, for scanners and for what redacts logs."""


@dataclass(frozen=True, slots=True)
class Ids:
    """New ids of tokens and users."""

    token: str
    user: str


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A session: `token` is the cookie's value. `return_to` is where the browser wanted to go."""

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
    """Send a browser to the provider. Returns where to, and the state that it must bring back, which its cookie must say too:
    or else somebody could be made to finish the login of somebody else.

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
        await tx.sign_ins.begin(login)
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
    """A browser is back from the provider.

    Raises:
        WrongToken: the state is unknown, used or too old; the provider refuses the code; its token is not valid.
        Forbidden: whoever it is may not come in.
        Unavailable: the provider does not answer.
    """
    async with transactions.begin() as tx:
        login = await tx.sign_ins.take(digest_token(state))
    if login is None or login.expires_at <= now:
        raise WrongToken("this sign-in is over, or was used already; sign in again.")
    id_token = await provider.redeem(code, verifier=login.verifier, redirect_uri=redirect_uri)
    claims = await provider.verify(id_token, nonce=login.nonce, now=now)
    async with transactions.begin() as tx:
        account = await _let_in(tx, claims, rules, ids.user, now)
        token, record = _session(account, ids.token, name="browser", how="provider", now=now)
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
    """A token for a command line, in exchange for the provider's. Tokens that a browser's sign-in got are refused: they have
    a nonce.

    Raises:
        WrongToken, Forbidden, Unavailable: as `finish_login`.
    """
    claims = await provider.verify(id_token, nonce=None, now=now)
    async with transactions.begin() as tx:
        account = await _let_in(tx, claims, rules, ids.user, now)
        token, record = _session(account, ids.token, name=name, how=None, now=now)
        tx.audit.by(account.name, record.id)
        await tx.tokens.add(record, digest_token(token))
    return NewToken(
        id=record.id,
        name=record.name,
        user=account.name,
        role=None,
        project=EVERYWHERE,
        created_by=record.created_by,
        created_at=now,
        expires_at=record.expires_at,
        token=token,
    )


async def sign_in_with_token(
    transactions: Transactions, principal: Principal, *, return_to: str | None, token_id: str, now: datetime
) -> SignedIn:
    """A session for whoever has shown a token: it may what that token may, and lasts no longer. The bearer of the service's
    own token becomes a robot of their role.
    """
    token = PREFIX + secrets.token_urlsafe(32)
    expires_at = min(now + SESSION, principal.expires_at or now + SESSION)
    record = TokenRecord(
        id=token_id,
        name="browser",
        user_id=None,
        role=principal.role_in(EVERYWHERE),
        session="token",
        created_by=principal.name,
        created_at=now,
        expires_at=expires_at,
    )
    async with transactions.begin() as tx:
        tx.audit.by(principal.name, principal.token_id)
        if principal.token_id is not None:
            shown = await tx.tokens.lock(principal.token_id)
            if shown.revoked_at is not None:
                raise WrongToken("this token was revoked.")
            record = TokenRecord(
                id=token_id,
                name="browser",
                user_id=shown.user_id,
                role=shown.role,
                project=shown.project,
                session=session_of_token(shown.id),
                created_by=principal.name,
                created_at=now,
                expires_at=expires_at,
            )
        await tx.tokens.add(record, digest_token(token))
    return SignedIn(token, expires_at, safe_return(return_to))


async def sign_out(transactions: Transactions, token: str, now: datetime) -> None:
    """End the session of a cookie. One that is over already is none of anybody's concern."""
    async with transactions.begin() as tx:
        bearer = await tx.bearers.of_digest(digest_token(token))
        if bearer is not None and bearer.token.session is not None:
            tx.audit.by(bearer.user_name or bearer.token.created_by, bearer.token.id)
            await tx.tokens.revoke(bearer.token.id, now)
            tx.ring(Bell.ACCESS)


async def _let_in(
    tx: Transaction, claims: Claims, rules: AdmissionRules, new_user_id: str, now: datetime
) -> Account:
    known = await tx.sign_ins.account(claims)
    admission = admit(claims, known, rules)
    account = Account(
        id=new_user_id if known is None else known.id,
        name=admission.name,
        issuer=claims.issuer,
        subject=claims.subject,
    )
    if admission.binds:
        await tx.sign_ins.admit(account, admission.roles, now)
    return account


def _session(
    account: Account, token_id: str, *, name: str, how: str | None, now: datetime
) -> tuple[str, TokenRecord]:
    """A new token of somebody who has just proved who they are."""
    record = TokenRecord(
        id=token_id,
        name=name,
        user_id=account.id,
        role=None,
        session=how,
        created_by=account.name,
        created_at=now,
        expires_at=now + SESSION,
    )
    return PREFIX + secrets.token_urlsafe(32), record
