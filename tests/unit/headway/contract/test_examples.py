"""The examples of the API's description are accepted."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from headway.contract.views.money import BudgetRequest
from headway.contract.views.recommendations import RecommendationRequest


@pytest.mark.parametrize("model", [BudgetRequest, RecommendationRequest])
def test_examples_are_valid(model: type[BaseModel]) -> None:
    examples = model.model_json_schema()["examples"]
    assert examples
    for example in examples:
        assert set(example) == model.model_validate(example).model_fields_set
