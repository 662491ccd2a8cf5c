"""Client methods about secrets and the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from headway._lazy import lazy
from headway.contract.views.jobs import Page
from headway.http import Http

if TYPE_CHECKING:
    from headway.contract.views import identity
else:
    identity = lazy("headway.contract.views.identity")

_AUDIT = "/api/v1/audit"


class SecretCalls:
    """Methods about secrets and the audit log."""

    _http: Http

    def secrets(self, project: str) -> list[identity.SecretView]:
        """Return the names of a project's secrets."""
        return (
            Page[identity.SecretView]
            .model_validate_json(self._http.request("GET", _path(project)).content)
            .items
        )

    def set_secret(self, project: str, name: str, value: str) -> identity.SecretView:
        """Set a secret. The service never returns its value."""
        answer = self._http.request("PUT", _path(project, name), json={"value": value})
        return identity.SecretView.model_validate_json(answer.content, extra="ignore")

    def delete_secret(self, project: str, name: str) -> None:
        """Remove a secret of a project."""
        self._http.request("DELETE", _path(project, name))

    def audit(
        self, *, project: str | None = None, actor: str | None = None, since: datetime | None = None
    ) -> Iterator[identity.AuditView]:
        """Yield changes and refused requests, newest first, of all projects or of one."""
        given = {"project": project, "actor": actor, "since": since.isoformat() if since else None}
        query = {name: value for name, value in given.items() if value is not None}
        while True:
            answer = self._http.request("GET", _AUDIT, params=query)
            page = Page[identity.AuditView].model_validate_json(answer.content, extra="ignore")
            yield from page.items
            if page.next_cursor is None:
                return
            query["cursor"] = page.next_cursor


def _path(project: str, *rest: str) -> str:
    return "/".join(
        (
            f"/api/v1/projects/{quote(project, safe='')}/secrets",
            *(quote(one, safe="") for one in rest),
        )
    )
