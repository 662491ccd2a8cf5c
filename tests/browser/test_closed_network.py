"""Every page in a browser that reaches the service's host and no other, as on a site without the internet."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Route, expect

from headway.local.stack import LocalStack
from tests.browser.conftest import PATIENCE_MS, Visit, Visitor

PAGES = (
    "/",
    "/jobs?state=all",
    "/nodes/local-1",
    "/rounds",
    "/money",
    "/simulations",
    "/submit",
    "/auth/login",
    "/help",
    "/help/reasons",
    "/help/errors",
)
expect.set_options(timeout=PATIENCE_MS)


def close_the_network(visitor: Visitor) -> list[str]:
    """Let requests to the service through alone; the others are noted."""
    refused: list[str] = []
    own = urlsplit(visitor.base).netloc

    def decide(route: Route) -> None:
        address = urlsplit(route.request.url)
        if address.netloc in {own, ""}:  # a blob or data address is the page's own
            route.continue_()
        else:
            refused.append(route.request.url)
            route.abort()

    visitor.context.route("**/*", decide)
    # A browser never requests what a policy forbids, but it is a mistake in the page all the same.
    visitor.context.add_init_script(
        "addEventListener('securitypolicyviolation', one => console.error(`policy: ${one.violatedDirective} ${one.blockedURI}`))"
    )
    return refused


# In the gate: one page in a real browser.
def test_pages_ask_nobody_else(visit: Visit) -> None:
    visitor = visit()
    refused = close_the_network(visitor)
    for path in PAGES:
        visitor.goto(path)
        expect(visitor.page.locator("h1").first).to_be_visible()
    assert refused == []
    assert visitor.complaints == []


def test_the_reference_is_read_without_the_internet(visit: Visit) -> None:
    visitor = visit()
    refused = close_the_network(visitor)
    visitor.page.goto(f"{visitor.base}/redoc")
    expect(visitor.page.locator("h1").first).to_contain_text("Headway")
    expect(visitor.page.get_by_text("Submit a job. A repeated").first).to_be_visible()
    visitor.shoot("redoc")
    assert refused == []
    assert visitor.complaints == []


def test_a_route_is_tried_with_a_token_and_answers_as_its_example(
    stack: LocalStack, browser: Browser, session: object
) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    visitor = Visitor(stack.url, context, context.new_page())
    refused = close_the_network(visitor)
    page = visitor.page
    page.on("console", lambda one: visitor.complaints.append(one.text) if one.type == "error" else None)
    page.goto(f"{stack.url}/docs")
    authorise(page, stack.token)
    route = open_route(page, "nodes", "list_nodes")
    example = json.loads(route.locator(".model-example .microlight").first.inner_text())
    route.get_by_role("button", name="Try it out").click()
    route.get_by_role("button", name="Execute").click()
    live = route.locator(".live-responses-table")
    expect(live.locator(".response-col_status").last).to_contain_text("200")
    answer = json.loads(live.locator(".highlight-code .microlight").first.inner_text())
    assert shape(example["items"][0]) == shape(answer["items"][0])
    assert {one["name"] for one in answer["items"]} == {"local-1", "local-2"}
    visitor.shoot("docs")
    assert refused == []
    assert visitor.complaints == []
    context.close()


def authorise(page: Page, token: str) -> None:
    page.get_by_role("button", name="Authorize").first.click()
    window = page.locator(".modal-ux")
    window.locator("input").fill(token)
    window.get_by_role("button", name="Apply credentials").click()
    window.get_by_role("button", name="Close").first.click()
    expect(window).to_be_hidden()


def open_route(page: Page, tag: str, operation: str) -> Any:
    page.locator(f"#operations-tag-{tag}").click()
    route = page.locator(f"#operations-{tag}-{operation}")
    route.locator(".opblock-summary").click()
    return route


def shape(message: dict[str, Any]) -> set[str]:
    """The names of its fields, and of those of the first things in it."""
    names = set()
    for name, value in message.items():
        names.add(name)
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict):
            names |= {f"{name}.{one}" for one in inner}
    return names
