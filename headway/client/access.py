"""Client methods about users, projects, tokens, secrets and the audit log."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from headway._lazy import lazy
from headway.client.calls import Calls, api_path
from headway.contract.views.jobs import Page

if TYPE_CHECKING:
    from headway.contract.views import identity
else:
    identity = lazy("headway.contract.views.identity")

_NOTHING: Mapping[str, float | None] = MappingProxyType({})


class AccessCalls(Calls):
    """Methods about users, projects, tokens, secrets and the audit log."""

    def whoami(self) -> identity.WhoAmI:
        """Return the user of our token, with their roles."""
        return self._get(api_path("whoami"), identity.WhoAmI)

    def sign_in_settings(self) -> identity.SignInView:
        """Return the ways to sign in to the service."""
        return self._get(api_path("sign-in"), identity.SignInView)

    def sign_in(self, id_token: str, name: str) -> identity.NewToken:
        """Return a token in exchange for an identity token of the service's identity provider."""
        body = {"id_token": id_token, "name": name[:100]}
        return self._post(api_path("sign-in"), identity.NewToken, json=body)

    def create_sign_in_link(self) -> identity.SignInLink:
        """Return a link that signs a browser in as the user of our token. It works once."""
        link = self._post(api_path("sign-in", "links"), identity.SignInLink)
        return link.model_copy(update={"url": urljoin(f"{self._http.url}/", link.url)})

    def tokens(self) -> Iterator[identity.TokenView]:
        """Yield the working tokens that we may revoke, newest first."""
        return self._pages(api_path("tokens"), Page[identity.TokenView])

    def create_token(self, wanted: identity.TokenRequest) -> identity.NewToken:
        """Create a token and return it. The service never shows the token again."""
        body = wanted.model_dump(mode="json", exclude_unset=True)
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        return self._post(api_path("tokens"), identity.NewToken, json=body, headers=headers)

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token, which then no longer works."""
        self._delete(api_path("tokens", token_id))

    def join_tokens(self) -> Iterator[identity.JoinTokenView]:
        """Yield the working join tokens and those that expired within the last seven days, newest first."""
        return self._pages(api_path("join-tokens"), Page[identity.JoinTokenView])

    def create_join_token(self, wanted: identity.JoinTokenRequest) -> identity.NewJoinToken:
        """Create a join token and return it. The service never shows the token again."""
        body = wanted.model_dump(mode="json")
        return self._post(api_path("join-tokens"), identity.NewJoinToken, json=body)

    def revoke_join_token(self, token_id: str) -> None:
        """Revoke a join token, so that no further agent can join with it."""
        self._delete(api_path("join-tokens", token_id))

    def users(self) -> Iterator[identity.UserView]:
        """Yield all users, sorted by name."""
        return self._pages(api_path("users"), Page[identity.UserView])

    def add_user(self, wanted: identity.UserRequest) -> identity.UserView:
        """Add a user, who may then sign in."""
        return self._post(api_path("users"), identity.UserView, json=wanted.model_dump(mode="json"))

    def change_user(self, name: str, patch: identity.UserPatch) -> identity.UserView:
        """Change the fields of a user that `patch` sets."""
        body = patch.model_dump(mode="json", exclude_unset=True)
        return self._send("PATCH", api_path("users", name), identity.UserView, json=body)

    def delete_user(self, name: str) -> None:
        """Remove a user with their roles and tokens."""
        self._delete(api_path("users", name))

    def projects(self) -> Iterator[identity.ProjectView]:
        """Yield the projects that we can see, sorted by name."""
        return self._pages(api_path("projects"), Page[identity.ProjectView])

    def project(self, name: str) -> identity.ProjectView:
        """Return one project with its members."""
        return self._get(api_path("projects", name), identity.ProjectView)

    def create_project(self, name: str, wanted: identity.ProjectRequest) -> identity.ProjectView:
        """Create a project, and return it.

        The service refuses an existing name, unless the project is identical.
        """
        return self._put_project(name, wanted, {"If-None-Match": "*"})

    def change_project(
        self, name: str, *, description: str | None = None, quota: Mapping[str, float | None] = _NOTHING
    ) -> identity.ProjectView:
        """Change the given fields, including fields of the quota. The service refuses a concurrent change."""
        answer = self._http.request("GET", api_path("projects", name))
        known = identity.ProjectView.model_validate_json(answer.content, extra="ignore")
        wanted = identity.ProjectRequest(
            description=known.description if description is None else description,
            quota=identity.ProjectQuota.model_validate({**known.quota.model_dump(), **quota}),
        )
        return self._put_project(name, wanted, {"If-Match": answer.headers.get("ETag", "*")})

    def _put_project(
        self, name: str, wanted: identity.ProjectRequest, headers: dict[str, str]
    ) -> identity.ProjectView:
        body = wanted.model_dump(mode="json")
        return self._send("PUT", api_path("projects", name), identity.ProjectView, json=body, headers=headers)

    def delete_project(self, name: str) -> None:
        """Remove a project that has no live jobs."""
        self._delete(api_path("projects", name))

    def set_member(self, project: str, user: str, role: identity.Role) -> identity.ProjectView:
        """Give a user a role in a project."""
        path = api_path("projects", project, "members", user)
        return self._send("PUT", path, identity.ProjectView, json={"role": role.value})

    def remove_member(self, project: str, user: str) -> None:
        """Take a user's role in a project away."""
        self._delete(api_path("projects", project, "members", user))

    def secrets(self, project: str) -> list[identity.SecretView]:
        """Return the names of a project's secrets."""
        return self._get(api_path("projects", project, "secrets"), Page[identity.SecretView]).items

    def set_secret(self, project: str, name: str, value: str) -> identity.SecretView:
        """Set a secret. The service never returns its value."""
        path = api_path("projects", project, "secrets", name)
        return self._send("PUT", path, identity.SecretView, json={"value": value})

    def delete_secret(self, project: str, name: str) -> None:
        """Remove a secret of a project."""
        self._delete(api_path("projects", project, "secrets", name))

    def audit(
        self, *, project: str | None = None, actor: str | None = None, since: datetime | None = None
    ) -> Iterator[identity.AuditView]:
        """Yield changes and refused requests, newest first, of all projects or of one."""
        params = {"project": project, "actor": actor, "since": since.isoformat() if since else None}
        return self._pages(api_path("audit"), Page[identity.AuditView], params)
