"""Base class of the client's methods: single requests and paginated lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from headway.contract.views.jobs import Item, JobView, Page
from headway.errors import HeadwayError
from headway.http import Http

Model = TypeVar("Model", bound=BaseModel)


class Calls:
    """Requests over the client's connection. Response fields that only a newer service knows are ignored."""

    _http: Http

    def _send(self, method: str, path: str, model: type[Model], **arguments: Any) -> Model:
        content = self._http.request(method, path, **arguments).content
        return model.model_validate_json(content, extra="ignore")

    def _get(self, path: str, model: type[Model], **params: object) -> Model:
        return self._send("GET", path, model, params=given(params))

    def _post(self, path: str, model: type[Model], **arguments: Any) -> Model:
        return self._send("POST", path, model, **arguments)

    def _delete(self, path: str) -> None:
        self._http.request("DELETE", path)

    def _pages(self, path: str, model: type[Page[Item]], params: Mapping[str, object] = {}) -> Iterator[Item]:
        query = given(params)
        while True:
            page = self._send("GET", path, model, params=query)
            yield from page.items
            if page.next_cursor is None:
                return
            query["cursor"] = page.next_cursor


def api_path(*parts: str | int) -> str:
    """Return the path of a resource of the API, with quoted parts.

    Raises:
        HeadwayError: a part would lead to another resource, such as an empty name, or is no text.
    """
    return "/".join(("/api/v1", *(_quoted(str(part)) for part in parts)))


def _quoted(part: str) -> str:
    if part in {"", ".", ".."} or "/" in part or not part.isprintable():
        raise HeadwayError(f"{part!a} is no name and no id.", "Give a name or id as the lists show it.")
    return quote(part, safe="")


def job_path(job: str | JobView, *rest: str) -> str:
    """Return the path of a job, given as an id, a name or a view."""
    return api_path("jobs", job.id if isinstance(job, JobView) else job, *rest)


def given(params: Mapping[str, object]) -> dict[str, str]:
    """Return the query parameters that are not None, as text."""
    return {name: str(value) for name, value in params.items() if value is not None}
