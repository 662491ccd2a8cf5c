"""The client's methods about who may do what."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from urllib.parse import quote

from headway._calls import Calls
from headway.contract.identity import (
    NewToken,
    ProjectQuota,
    ProjectRequest,
    ProjectView,
    Role,
    SignInView,
    TokenRequest,
    TokenView,
    UserPatch,
    UserRequest,
    UserView,
    WhoAmI,
)
from headway.contract.jobs import Page

_TOKENS = "/api/v1/tokens"
_USERS = "/api/v1/users"
_PROJECTS = "/api/v1/projects"
_NOTHING: Mapping[str, float | None] = MappingProxyType({})


class AccessCalls(Calls):
    """Tokens, people and projects, over the connection of the client."""

    def whoami(self) -> WhoAmI:
        """Who the bearer of our token is."""
        return self._get("/api/v1/whoami", WhoAmI)

    def sign_in_ways(self) -> SignInView:
        """How people sign in there."""
        return self._get("/api/v1/sign-in", SignInView)

    def sign_in(self, id_token: str, name: str) -> NewToken:
        """A token in exchange for the identity token of the service's provider."""
        body = {"id_token": id_token, "name": name[:100]}
        return self._post("/api/v1/sign-in", NewToken, json=body)

    def tokens(self) -> Iterator[TokenView]:
        """Tokens that work and that we may revoke, newest first."""
        return self._pages(_TOKENS, Page[TokenView], {})

    def create_token(self, wanted: TokenRequest) -> NewToken:
        """A new token, which is in the answer this once."""
        body = wanted.model_dump(mode="json", exclude_unset=True)
        return self._post(_TOKENS, NewToken, json=body, headers={"Idempotency-Key": str(uuid.uuid4())})

    def revoke_token(self, token_id: str) -> None:
        """Have a token work no more."""
        self._http.request("DELETE", _path(_TOKENS, token_id))

    def users(self) -> Iterator[UserView]:
        """Everybody, by name."""
        return self._pages(_USERS, Page[UserView], {})

    def add_user(self, wanted: UserRequest) -> UserView:
        """Add a person, who may then sign in."""
        return self._post(_USERS, UserView, json=wanted.model_dump(mode="json"))

    def change_user(self, name: str, patch: UserPatch) -> UserView:
        """Change what is set in `patch`."""
        answer = self._http.request(
            "PATCH", _path(_USERS, name), json=patch.model_dump(mode="json", exclude_unset=True)
        )
        return UserView.model_validate_json(answer.content, extra="ignore")

    def delete_user(self, name: str) -> None:
        """Remove somebody with their roles and tokens."""
        self._http.request("DELETE", _path(_USERS, name))

    def projects(self) -> Iterator[ProjectView]:
        """Our projects, by name."""
        return self._pages(_PROJECTS, Page[ProjectView], {})

    def project(self, name: str) -> ProjectView:
        """One project."""
        return self._get(_path(_PROJECTS, name), ProjectView)

    def create_project(self, name: str, wanted: ProjectRequest) -> ProjectView:
        """Make a project; refused if there is one of that name, unless it is the same."""
        return self._put_project(name, wanted, {"If-None-Match": "*"})

    def change_project(
        self, name: str, *, description: str | None = None, quota: Mapping[str, float | None] = _NOTHING
    ) -> ProjectView:
        """Set what is given, of the quota too; refused if somebody else changes it at the same time."""
        answer = self._http.request("GET", _path(_PROJECTS, name))
        known = ProjectView.model_validate_json(answer.content, extra="ignore")
        wanted = ProjectRequest(
            description=known.description if description is None else description,
            quota=ProjectQuota.model_validate({**known.quota.model_dump(), **quota}),
        )
        return self._put_project(name, wanted, {"If-Match": answer.headers.get("ETag", "*")})

    def _put_project(self, name: str, wanted: ProjectRequest, headers: dict[str, str]) -> ProjectView:
        answer = self._http.request(
            "PUT", _path(_PROJECTS, name), json=wanted.model_dump(mode="json"), headers=headers
        )
        return ProjectView.model_validate_json(answer.content, extra="ignore")

    def delete_project(self, name: str) -> None:
        """Remove a project without live jobs."""
        self._http.request("DELETE", _path(_PROJECTS, name))

    def set_member(self, project: str, user: str, role: Role) -> ProjectView:
        """Give a user a role in a project."""
        answer = self._http.request(
            "PUT", _path(_PROJECTS, project, "members", user), json={"role": role.value}
        )
        return ProjectView.model_validate_json(answer.content, extra="ignore")

    def remove_member(self, project: str, user: str) -> None:
        """Take a user's role in a project away."""
        self._http.request("DELETE", _path(_PROJECTS, project, "members", user))


def _path(*parts: str) -> str:
    root, *rest = parts
    return "/".join((root, *(quote(part, safe="") for part in rest)))
