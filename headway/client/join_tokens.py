"""Client methods about the tokens that agents join with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from headway._lazy import lazy
from headway.client.calls import Calls
from headway.contract.views.jobs import Page

if TYPE_CHECKING:
    from headway.contract.views import identity
else:
    identity = lazy("headway.contract.views.identity")

_JOIN_TOKENS = "/api/v1/join-tokens"


class JoinTokenCalls(Calls):
    """Methods about join tokens."""

    def join_tokens(self) -> Iterator[identity.JoinTokenView]:
        """Yield the working join tokens and those that expired within the last seven days, newest first."""
        return self._pages(_JOIN_TOKENS, Page[identity.JoinTokenView], {})

    def create_join_token(self, wanted: identity.JoinTokenRequest) -> identity.NewJoinToken:
        """Create a join token and return it. The service never shows the token again."""
        return self._post(_JOIN_TOKENS, identity.NewJoinToken, json=wanted.model_dump(mode="json"))

    def revoke_join_token(self, token_id: str) -> None:
        """Revoke a join token, so that no further agent can join with it."""
        self._http.request("DELETE", f"{_JOIN_TOKENS}/{quote(token_id, safe='')}")
