"""A browser as far as signing in needs one: it keeps cookies by host, follows redirects, fills in forms, and says where from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import httpx

from tests.integration.service.conftest import Harness

URL = "http://headway.test"


class Form(HTMLParser):
    """The first form of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.action: str | None = None
        self.method = "get"
        self.fields: dict[str, str] = {}
        self._over = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form" and self.action is None:
            self.action, self.method = given.get("action", ""), given.get("method", "get").lower()
        elif tag == "input" and given.get("name") and not self._over:
            self.fields.setdefault(given["name"], given.get("value", ""))

    def handle_endtag(self, tag: str) -> None:
        self._over = self._over or tag == "form"


class Browser:
    """Over a service in this process and whatever else listens on this machine."""

    def __init__(self, service: httpx.AsyncClient, outside: httpx.AsyncClient) -> None:
        self.sub = "ada"
        """Subject of the person who signs in at the provider."""
        self.service = service
        self._outside = outside

    def client_of(self, url: str) -> httpx.AsyncClient:
        return self.service if url.startswith(URL) else self._outside

    async def get(self, url: str) -> httpx.Response:
        """Follows redirects up to the next page, or up to where the service sends it back to itself."""
        url = urljoin(URL, url)
        while True:
            answer = await self.client_of(url).get(url)
            if not answer.is_redirect:
                return answer
            url = urljoin(url, answer.headers["location"])

    async def until(self, url: str, back_to: str) -> str:
        """The URL with which somebody else sends the browser back to `back_to`; it is not opened."""
        url = urljoin(URL, url)
        while not url.startswith(back_to):
            answer = await self.client_of(url).get(url)
            if not answer.is_redirect:
                answer = await self._submit(answer)
            url = urljoin(str(answer.url), answer.headers["location"])
        return url

    async def _submit(self, page: httpx.Response) -> httpx.Response:
        form = Form(page.text)
        assert form.action is not None, page.text
        fields = {**form.fields, **{name: self.sub for name in form.fields if name in {"login", "sub"}}}
        fields = {**fields, **({"password": "any"} if "password" in fields else {})}
        url = urljoin(str(page.url), form.action)
        origin = "{0.scheme}://{0.netloc}".format(urlsplit(str(page.url)))
        return await self.client_of(url).post(url, data=fields, headers={"Origin": origin})


@asynccontextmanager
async def browsing(harness: Harness) -> AsyncIterator[Browser]:
    """A browser without cookies."""
    transport = harness.client._transport
    async with (
        httpx.AsyncClient(transport=transport, base_url=URL) as inside,
        httpx.AsyncClient() as outside,
    ):
        yield Browser(inside, outside)
