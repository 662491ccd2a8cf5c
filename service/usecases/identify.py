"""Who a bearer token belongs to."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from headway.contract.identity import EVERYWHERE, TOKEN_PATTERN, Role
from service.domain.access import Principal, narrowed
from service.domain.errors import HeadwayServiceError, Unavailable, WrongToken
from service.usecases.identity_ports import Bearer
from service.usecases.join import digest_token
from service.usecases.ports import Transactions

KNOWN_FOR_S = 5.0
"""A token that works is looked up again after so long. What is changed is heard of at once, as long as Redis answers."""
RENEWED_AFTER_S = 2.0
"""A token that is in use is looked up again after so long beside its request, which does not wait for it."""
UNKNOWN_FOR_S = 1.0
"""A token that does not is looked up again after so long: a flood of it is no flood of queries."""
USED_EVERY_S = 60.0
"""So often it is noted that a token was used."""
_MOST = 10_000
"""Tokens that are remembered, of each kind."""
_FORM = re.compile(TOKEN_PATTERN)
_MISSING = "no API token was shown; set HEADWAY_TOKEN, or run `headway login`."
_WRONG = "the API token is wrong: this service does not know it; set HEADWAY_TOKEN, or run `headway login`."


@dataclass(slots=True)
class _Remembered:
    """`noted` says that its use was noted while it was remembered, `renewing` that it is being looked up again."""

    bearer: Bearer | None
    since_s: float
    until_s: float
    noted: bool = False
    renewing: bool = False


class Identities:
    """Knows tokens. `admin_token` is the one in the service's own settings: its bearer may everything; "" is nobody's."""

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
        """The bearer.

        Raises:
            WrongToken: the token is missing, wrong, expired or revoked, or its user is disabled.
            Unavailable: it is not remembered, and the database does not answer.
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
        """Look every token up again: somebody may less, or more, than before."""
        self._known.clear()
        self._unknown.clear()
        self._forgotten += 1

    async def write_uses(self) -> None:
        """Note which tokens were used since the last time. Raises Unavailable; they are noted the next time then."""
        used, self._used = self._used, {}
        if not used:
            return
        try:
            async with self._transactions.begin() as tx:
                await tx.bearers.used(used, USED_EVERY_S)
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
            return  # who shows the token when it is not remembered any more looks it up, and is told

    async def _look_up(self, digest: str) -> _Remembered:
        forgotten = self._forgotten
        began_s = self._clock_s()
        bearer = await self._look_ups.find(digest)
        kept_s = UNKNOWN_FOR_S if bearer is None else KNOWN_FOR_S
        found = _Remembered(bearer, began_s, began_s + kept_s)
        if forgotten == self._forgotten:  # else it may be from before what was heard of
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
    """Looks tokens up in groups: while one group is asked for, the next one gathers. Nobody waits for company."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._wanted: dict[str, asyncio.Future[Bearer | None]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def find(self, digest: str) -> Bearer | None:
        """Whose token it is, asked for after this was called. Raises Unavailable."""
        wanted = self._wanted.setdefault(digest, asyncio.get_running_loop().create_future())
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(wanted)  # others may wait for the same one

    async def _ask(self) -> None:
        try:
            while self._wanted:
                group, self._wanted = self._wanted, {}
                try:
                    async with self._transactions.begin() as tx:
                        found = await tx.bearers.of_digests(group.keys())
                except HeadwayServiceError as error:
                    for one in group.values():
                        one.set_exception(error)
                except BaseException:
                    for one in group.values():
                        one.set_exception(RuntimeError("looking a token up failed; see the service's log"))
                    raise
                else:
                    for digest, one in group.items():
                        one.set_result(found.get(digest))
        finally:
            self._asking = None


def principal_of(bearer: Bearer, now: datetime) -> Principal:
    """Whoever carries a token, and what they may with it.

    Raises:
        WrongToken: the token works no more; the sentence, which only its bearer gets, says why.
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
        # A blank keeps it apart from people: no name of theirs has one.
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
