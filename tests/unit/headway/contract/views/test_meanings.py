"""Every reason and every error code has its text, in sentences, and a page of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headway.contract.views.jobs import Reason
from headway.contract.views.meanings import ERRORS, REASONS, Meaning
from service.api.http.problems import OTHER_CODE, OTHER_CODES
from service.domain.shared.errors import HeadwayServiceError


def _errors(root: type[HeadwayServiceError]) -> Iterator[type[HeadwayServiceError]]:
    yield root
    for one in root.__subclasses__():
        yield from _errors(one)


def test_every_reason_is_explained() -> None:
    assert set(REASONS) == set(Reason)


def test_every_error_is_explained_and_none_that_does_not_exist() -> None:
    codes = {one.code for one in _errors(HeadwayServiceError)} | {OTHER_CODE, *OTHER_CODES.values()}
    assert set(ERRORS) == codes


@pytest.mark.parametrize("meaning", [*REASONS.values(), *ERRORS.values()], ids=lambda one: one.means[:20])
def test_a_meaning_is_made_of_sentences(meaning: Meaning) -> None:
    for text in (meaning.means, meaning.do):
        assert text[0].isupper() or text[0] == "`"
        assert text.endswith(".")
