"""`/help`: the page that the link in an answer leads to."""

from __future__ import annotations

from headway.contract.views.meanings import ERRORS, REASONS
from service.api.routes.upkeep.meanings import errors, help_page, index, reasons


async def test_every_code_has_its_anchor() -> None:
    page = (await errors()).body.decode()
    assert all(f'id="{code}"' in page for code in ERRORS)
    page = (await reasons()).body.decode()
    assert all(f'id="{reason}"' in page for reason in REASONS)


def test_a_page_shows_code_as_code_and_nothing_as_markup() -> None:
    page = help_page("T", {"a<b": ERRORS["wrong_token"]})
    assert "a&lt;b" in page
    assert "<code>headway login</code>" in page


async def test_help_leads_on_and_every_other_page_leads_back() -> None:
    page = (await index()).body.decode()
    for path in ("/help/reasons", "/help/errors", "/docs", "/auth/login", "/submit", "/rounds"):
        assert f'href="{path}"' in page
    assert "<code>headway explain JOB</code>" in page
    assert 'href="/help"' in (await reasons()).body.decode()
