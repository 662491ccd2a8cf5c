"""The API's description is made beside the event loop, once, and again after a failure."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from service.api.http.reference import ApiDescription, install_reference


def client_of(make: Callable[[], dict[str, Any]]) -> httpx.AsyncClient:
    """An application that has nothing but its description, and a heartbeat."""
    app = FastAPI(openapi_url=None)
    install_reference(app, ApiDescription(make))

    @app.get("/beat")
    async def beat() -> dict[str, bool]:
        return {"well": True}

    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://headway")


async def test_a_heartbeat_is_answered_while_the_description_is_made() -> None:
    beaten = threading.Event()
    threads: list[int] = []

    def make() -> dict[str, Any]:
        threads.append(threading.get_ident())
        assert beaten.wait(60), "the event loop waits for the description"
        return {"openapi": "3.1.0"}

    async with client_of(make) as client:
        asked = [asyncio.create_task(client.get("/openapi.json")) for _ in range(3)]
        assert (await client.get("/beat")).json() == {"well": True}
        beaten.set()
        answers = await asyncio.gather(*asked)
    assert [one.json() for one in answers] == [{"openapi": "3.1.0"}] * 3
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_who_has_it_already_is_told_so() -> None:
    async with client_of(lambda: {"openapi": "3.1.0"}) as client:
        first = await client.get("/openapi.json")
        again = await client.get("/openapi.json", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_it_is_made_again_when_it_could_not_be_made() -> None:
    tries: list[int] = []

    def make() -> dict[str, Any]:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not now")
        return {"openapi": "3.1.0"}

    description = ApiDescription(make)
    with pytest.raises(ValueError, match="not now"):
        await description.served()
    text, _ = await description.served()
    assert text == b'{"openapi":"3.1.0"}'


async def test_no_page_names_anybody_else_to_load_from() -> None:
    async with client_of(dict) as client:
        for page in ("/docs", "/redoc"):
            text = (await client.get(page)).text
            assert "//" not in re.sub(r"(?m)^\s*//.*|<!--.*?-->", "", text), page
        script = await client.get("/static-offline-docs/redoc.standalone.js")
    assert script.status_code == 200
    assert b"cdn.redoc.ly" not in script.content
    assert b"data:image/svg+xml," in script.content
