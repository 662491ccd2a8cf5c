"""The client's methods about secrets, and about what people did."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from urllib.parse import quote

from headway._http import Http
from headway.contract.identity import AuditView, SecretView
from headway.contract.jobs import Page

_AUDIT = "/api/v1/audit"


class SecretCalls:
    """Secrets and the audit log, over the connection of the client."""

    _http: Http

    def secrets(self, project: str) -> list[SecretView]:
        """The names of a project's secrets."""
        return Page[SecretView].model_validate_json(self._http.request("GET", _path(project)).content).items

    def set_secret(self, project: str, name: str, value: str) -> SecretView:
        """Set a secret. The value is never shown again."""
        answer = self._http.request("PUT", _path(project, name), json={"value": value})
        return SecretView.model_validate_json(answer.content, extra="ignore")

    def delete_secret(self, project: str, name: str) -> None:
        """Remove a secret."""
        self._http.request("DELETE", _path(project, name))

    def audit(
        self, *, project: str | None = None, actor: str | None = None, since: datetime | None = None
    ) -> Iterator[AuditView]:
        """Changes and refusals, newest first: everywhere, or of a project."""
        given = {"project": project, "actor": actor, "since": since.isoformat() if since else None}
        query = {name: value for name, value in given.items() if value is not None}
        while True:
            answer = self._http.request("GET", _AUDIT, params=query)
            page = Page[AuditView].model_validate_json(answer.content, extra="ignore")
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
