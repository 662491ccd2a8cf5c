"""The client's methods about the tokens that agents join with."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from headway._calls import Calls
from headway.contract.identity import JoinTokenRequest, JoinTokenView, NewJoinToken
from headway.contract.jobs import Page

_JOIN_TOKENS = "/api/v1/join-tokens"


class JoinTokenCalls(Calls):
    """Join tokens, over the connection of the client."""

    def join_tokens(self) -> Iterator[JoinTokenView]:
        """Those that work, and those that expired within the week; the newest first."""
        return self._pages(_JOIN_TOKENS, Page[JoinTokenView], {})

    def create_join_token(self, wanted: JoinTokenRequest) -> NewJoinToken:
        """A new one. It is in the answer this once."""
        return self._post(_JOIN_TOKENS, NewJoinToken, json=wanted.model_dump(mode="json"))

    def revoke_join_token(self, token_id: str) -> None:
        """Let nobody join with it any more."""
        self._http.request("DELETE", f"{_JOIN_TOKENS}/{quote(token_id, safe='')}")
