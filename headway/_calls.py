"""What all methods of the client are made of: one request, or a listing page by page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from headway._http import Http
from headway.contract.jobs import Item, Page

Model = TypeVar("Model", bound=BaseModel)


class Calls:
    """Requests over the connection of the client. Fields that only a newer service knows are ignored."""

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


def given(params: Mapping[str, object]) -> dict[str, str]:
    """The parameters of a query that are not None, as text."""
    return {name: str(value) for name, value in params.items() if value is not None}
