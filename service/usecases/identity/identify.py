"""Authentication of bearer tokens, with a cache of tokens."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from headway.contract.views.identity import EVERYWHERE, TOKEN_PATTERN, Role
from service.domain.identity.access import Principal, narrowed
from service.domain.shared.errors import HeadwayServiceError, Unavailable, WrongToken
from service.usecases.nodes.join import digest_token
from service.usecases.ports.identity import Bearer
from service.usecases.ports.transactions import Transactions

KNOWN_FOR_S = 5.0
"""Lifetime of a valid token in the cache.

While Redis answers, changes of access rights take effect at once.
"""
RENEWED_AFTER_S = 2.0
"""Age of a cache entry after which its next use refreshes it in the background."""
UNKNOWN_FOR_S = 1.0
"""Lifetime of an unknown token in the cache, so that a flood of it does not become a flood of queries."""
USED_EVERY_S = 60.0
"""Minimum interval between two stored uses of a token."""
_MOST = 10_000
"""Maximum number of cached tokens: of valid ones, and of unknown ones."""
_FORM = re.compile(TOKEN_PATTERN)
_MISSING = "the request has no API token; set HEADWAY_TOKEN, or run `headway login`."
_WRONG = "the API token is wrong: this service does not know it; set HEADWAY_TOKEN, or run `headway login`."


@dataclass(slots=True)
class _Remembered:
    """A cache entry.

    `noted` says that its use was queued for storage, `renewing` that a refresh is in progress.
    """

    bearer: Bearer | None
    since_s: float
    until_s: float
    noted: bool = False
    renewing: bool = False


class Identities:
    """Authenticator of bearer tokens.

    The bearer of `admin_token`, from the service's settings, may do everything; "" disables it.
    """

    def __init__(
        self,
        transactions: Transactions,
        admin_token: str,
        now: Callable[[], datetime],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transactions = transactions
        self._look_ups = _LookUps(transactions)
        self._renewals: set[asyncio.Task[None]] = set()
        self._now = now
        self._clock_s = clock_s
        self._admin_sha256 = digest_token(admin_token) if admin_token else None
        self._admin = Principal(name="admin", roles={EVERYWHERE: Role.ADMIN})
        self._known: OrderedDict[str, _Remembered] = OrderedDict()
        self._unknown: OrderedDict[str, _Remembered] = OrderedDict()
        self._forgotten = 0
        self._used: dict[str, datetime] = {}

    async def identify(self, token: str) -> Principal:
        """Return the bearer of a token.

        Raises:
            WrongToken: the token is missing, wrong, expired or revoked, or its user is disabled.
            Unavailable: it is not cached, and the database does not answer.
        """
        if not token:
            raise WrongToken(_MISSING)
        digest = digest_token(token)
        if self._admin_sha256 is not None and hmac.compare_digest(digest, self._admin_sha256):
            return self._admin
        if _FORM.fullmatch(token) is None:
            raise WrongToken(_WRONG)
        found = self._recall(digest)
        if found is None:
            found = await self._look_up(digest)
        elif self._clock_s() - found.since_s >= RENEWED_AFTER_S and not found.renewing:
            found.renewing = True
            renewal = asyncio.create_task(self._renew(digest))
            self._renewals.add(renewal)
            renewal.add_done_callback(self._renewals.discard)
        if found.bearer is None:
            raise WrongToken(_WRONG)
        now = self._now()
        principal = principal_of(found.bearer, now)
        if not found.noted:
            found.noted = True
            last = found.bearer.token.last_used_at
            if last is None or now - last >= timedelta(seconds=USED_EVERY_S):
                self._used[found.bearer.token.id] = now
        return principal

    def forget(self) -> None:
        """Drop all cached tokens, since access rights have changed."""
        self._known.clear()
        self._unknown.clear()
        self._forgotten += 1

    async def write_uses(self) -> None:
        """Store which tokens were used since the last call.

        Raise Unavailable; the uses are then stored the next time.
        """
        used, self._used = self._used, {}
        if not used:
            return
        try:
            async with self._transactions.begin() as tx:
                await tx.tokens.used(used, USED_EVERY_S)
        except Unavailable:
            self._used = {**used, **self._used}
            raise

    def _recall(self, digest: str) -> _Remembered | None:
        for remembered in (self._known, self._unknown):
            found = remembered.get(digest)
            if found is not None and found.until_s > self._clock_s():
                remembered.move_to_end(digest)
                return found
        return None

    async def _renew(self, digest: str) -> None:
        try:
            await self._look_up(digest)
        except HeadwayServiceError:
            return  # the next request with this token, once it has left the cache, looks it up and gets the error

    async def _look_up(self, digest: str) -> _Remembered:
        forgotten = self._forgotten
        began_s = self._clock_s()
        bearer = await self._look_ups.find(digest)
        kept_s = UNKNOWN_FOR_S if bearer is None else KNOWN_FOR_S
        found = _Remembered(bearer, began_s, began_s + kept_s)
        if forgotten == self._forgotten:  # otherwise the answer may be older than the change
            remembered, other = self._known, self._unknown
            if bearer is None:
                remembered, other = other, remembered
            other.pop(digest, None)
            remembered[digest] = found
            remembered.move_to_end(digest)
            if len(remembered) > _MOST:
                remembered.popitem(last=False)
        return found


class _LookUps:
    """Batched lookups of tokens: while one batch is queried, the next one collects.

    No lookup waits for a batch to fill.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._wanted: dict[str, asyncio.Future[Bearer | None]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def find(self, digest: str) -> Bearer | None:
        """Return the bearer of a token, from a query that starts after this call. Raise Unavailable."""
        wanted = self._wanted.setdefault(digest, asyncio.get_running_loop().create_future())
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(wanted)  # other requests may wait for the same lookup

    async def _ask(self) -> None:
        try:
            while self._wanted:
                group, self._wanted = self._wanted, {}
                try:
                    async with self._transactions.begin() as tx:
                        found = await tx.tokens.of_digests(group.keys())
                except HeadwayServiceError as error:
                    for one in group.values():
                        one.set_exception(error)
                except BaseException:
                    for one in group.values():
                        one.set_exception(RuntimeError("the lookup of a token failed; see the service's log"))
                    raise
                else:
                    for digest, one in group.items():
                        one.set_result(found.get(digest))
        finally:
            self._asking = None


def principal_of(bearer: Bearer, now: datetime) -> Principal:
    """Return the principal that a token authenticates, with its roles.

    Raises:
        WrongToken: the token is not valid any more. Only its bearer gets the message, which says why.
    """
    token = bearer.token
    if token.revoked_at is not None:
        raise WrongToken(
            f"this token was revoked at {_moment(token.revoked_at)}; `headway login` gets another one."
        )
    if token.expires_at is not None and token.expires_at <= now:
        raise WrongToken(
            f"this token has expired at {_moment(token.expires_at)}; `headway login` gets another one."
        )
    if bearer.disabled_at is not None:
        raise WrongToken(f"the account {bearer.user_name} is disabled; ask an admin to enable it.")
    if token.user_id is None:
        # The blank keeps robots apart from users, whose names have none.
        name, roles = f"robot {token.name}", {} if token.role is None else {token.project: token.role}
    else:
        name, roles = bearer.user_name or "", narrowed(bearer.roles, token.role, token.project)
    return Principal(
        name=name,
        roles=roles,
        user_id=token.user_id,
        token_id=token.id,
        expires_at=token.expires_at,
        token_role=token.role,
        token_project=token.project,
    )


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
