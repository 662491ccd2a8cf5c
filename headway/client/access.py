"""Client methods about tokens, users and projects."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin

from headway._lazy import lazy
from headway.client.calls import Calls
from headway.contract.views.jobs import Page

if TYPE_CHECKING:
    from headway.contract.views import identity
else:
    identity = lazy("headway.contract.views.identity")

_TOKENS = "/api/v1/tokens"
_USERS = "/api/v1/users"
_PROJECTS = "/api/v1/projects"
_NOTHING: Mapping[str, float | None] = MappingProxyType({})


class AccessCalls(Calls):
    """Methods about tokens, users and projects."""

    def whoami(self) -> identity.WhoAmI:
        """Return the user of our token, with their roles."""
        return self._get("/api/v1/whoami", identity.WhoAmI)

    def sign_in_ways(self) -> identity.SignInView:
        """Return the ways to sign in to the service."""
        return self._get("/api/v1/sign-in", identity.SignInView)

    def sign_in(self, id_token: str, name: str) -> identity.NewToken:
        """Return a token in exchange for an identity token of the service's identity provider."""
        body = {"id_token": id_token, "name": name[:100]}
        return self._post("/api/v1/sign-in", identity.NewToken, json=body)

    def create_sign_in_link(self) -> identity.SignInLink:
        """Return a link that signs a browser in as the user of our token. It works once."""
        link = self._post("/api/v1/sign-in/links", identity.SignInLink)
        return link.model_copy(update={"url": urljoin(f"{self._http.url}/", link.url)})

    def tokens(self) -> Iterator[identity.TokenView]:
        """Yield the working tokens that we may revoke, newest first."""
        return self._pages(_TOKENS, Page[identity.TokenView], {})

    def create_token(self, wanted: identity.TokenRequest) -> identity.NewToken:
        """Create a token and return it. The service never shows the token again."""
        body = wanted.model_dump(mode="json", exclude_unset=True)
        return self._post(
            _TOKENS, identity.NewToken, json=body, headers={"Idempotency-Key": str(uuid.uuid4())}
        )

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token, which then no longer works."""
        self._http.request("DELETE", _path(_TOKENS, token_id))

    def users(self) -> Iterator[identity.UserView]:
        """Yield all users, sorted by name."""
        return self._pages(_USERS, Page[identity.UserView], {})

    def add_user(self, wanted: identity.UserRequest) -> identity.UserView:
        """Add a user, who may then sign in."""
        return self._post(_USERS, identity.UserView, json=wanted.model_dump(mode="json"))

    def change_user(self, name: str, patch: identity.UserPatch) -> identity.UserView:
        """Change the fields of a user that `patch` sets."""
        answer = self._http.request(
            "PATCH", _path(_USERS, name), json=patch.model_dump(mode="json", exclude_unset=True)
        )
        return identity.UserView.model_validate_json(answer.content, extra="ignore")

    def delete_user(self, name: str) -> None:
        """Remove a user with their roles and tokens."""
        self._http.request("DELETE", _path(_USERS, name))

    def projects(self) -> Iterator[identity.ProjectView]:
        """Yield the projects that we can see, sorted by name."""
        return self._pages(_PROJECTS, Page[identity.ProjectView], {})

    def project(self, name: str) -> identity.ProjectView:
        """Return one project with its members."""
        return self._get(_path(_PROJECTS, name), identity.ProjectView)

    def create_project(self, name: str, wanted: identity.ProjectRequest) -> identity.ProjectView:
        """Create a project, and return it.

        The service refuses an existing name, unless the project is identical.
        """
        return self._put_project(name, wanted, {"If-None-Match": "*"})

    def change_project(
        self, name: str, *, description: str | None = None, quota: Mapping[str, float | None] = _NOTHING
    ) -> identity.ProjectView:
        """Change the given fields, including fields of the quota. The service refuses a concurrent change."""
        answer = self._http.request("GET", _path(_PROJECTS, name))
        known = identity.ProjectView.model_validate_json(answer.content, extra="ignore")
        wanted = identity.ProjectRequest(
            description=known.description if description is None else description,
            quota=identity.ProjectQuota.model_validate({**known.quota.model_dump(), **quota}),
        )
        return self._put_project(name, wanted, {"If-Match": answer.headers.get("ETag", "*")})

    def _put_project(
        self, name: str, wanted: identity.ProjectRequest, headers: dict[str, str]
    ) -> identity.ProjectView:
        answer = self._http.request(
            "PUT", _path(_PROJECTS, name), json=wanted.model_dump(mode="json"), headers=headers
        )
        return identity.ProjectView.model_validate_json(answer.content, extra="ignore")

    def delete_project(self, name: str) -> None:
        """Remove a project that has no live jobs."""
        self._http.request("DELETE", _path(_PROJECTS, name))

    def set_member(self, project: str, user: str, role: identity.Role) -> identity.ProjectView:
        """Give a user a role in a project."""
        answer = self._http.request(
            "PUT", _path(_PROJECTS, project, "members", user), json={"role": role.value}
        )
        return identity.ProjectView.model_validate_json(answer.content, extra="ignore")

    def remove_member(self, project: str, user: str) -> None:
        """Take a user's role in a project away."""
        self._http.request("DELETE", _path(_PROJECTS, project, "members", user))


def _path(*parts: str) -> str:
    root, *rest = parts
    return "/".join((root, *(quote(part, safe="") for part in rest)))
