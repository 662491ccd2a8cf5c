"""Who a bearer token belongs to."""

from __future__ import annotations

import hmac

from headway.contract.identity import EVERYWHERE, Role
from service.domain.access import Principal
from service.domain.errors import WrongToken
from service.usecases.join import digest_token


class Identities:
    """Knows tokens. `admin_token` is the one in the service's own settings: its bearer may everything."""

    def __init__(self, admin_token: str) -> None:
        self._admin_sha256 = digest_token(admin_token)
        self._admin = Principal(name="admin", roles={EVERYWHERE: Role.ADMIN})

    async def identify(self, token: str) -> Principal:
        """The bearer.

        Raises:
            WrongToken: the token is missing, wrong, expired or revoked.
        """
        if hmac.compare_digest(digest_token(token), self._admin_sha256):
            return self._admin
        raise WrongToken("the API token is missing or wrong; set HEADWAY_TOKEN, or run `headway login`.")
