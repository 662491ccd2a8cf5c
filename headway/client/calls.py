"""Base class of the client's methods: single requests and paginated lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from headway.contract.views.jobs import Item, JobView, Page
from headway.http import Http

Model = TypeVar("Model", bound=BaseModel)


class Calls:
    """Requests over the client's connection. Response fields that only a newer service knows are ignored."""

    _http: Http

    def _get(self, path: str, model: type[Model]) -> Model:
        return model.model_validate_json(self._http.request("GET", path).content, extra="ignore")

    def _post(self, path: str, model: type[Model], **arguments: Any) -> Model:
        return model.model_validate_json(
            self._http.request("POST", path, **arguments).content, extra="ignore"
        )

    def _pages(self, path: str, model: type[Page[Item]], params: Mapping[str, object]) -> Iterator[Item]:
        query = given(params)
        while True:
            page = model.model_validate_json(
                self._http.request("GET", path, params=query).content, extra="ignore"
            )
            yield from page.items
            if page.next_cursor is None:
                return
            query["cursor"] = page.next_cursor


def job_path(job: str | JobView, *rest: str) -> str:
    """Return the path of a job, given as an id, a name or a view."""
    name = job.id if isinstance(job, JobView) else job
    return "/".join((f"/api/v1/jobs/{quote(name, safe='')}", *rest))


def given(params: Mapping[str, object]) -> dict[str, str]:
    """Return the query parameters that are not None, as text."""
    return {name: str(value) for name, value in params.items() if value is not None}
