"""The rule `mixed` of the renting benchmark is made of functions that the service calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARK = (ROOT / "benchmarks" / "rental.py", ROOT / "benchmarks" / "rental_market.py")
RIVALS = {"flopp", "DEEPVM"}
"""Imports of the rule `deepvm`, which the service ranks plans by on request."""


def imported_rules() -> Iterator[str]:
    """Yield the functions and classes of the rental domain that the benchmark imports."""
    for file in BENCHMARK:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("service.domain.rental"):
                yield from (one.name for one in node.names if one.name not in RIVALS)


def called_in_service() -> set[str]:
    """Return the names that functions of the service call."""
    return {
        node.func.id
        for file in (ROOT / "service").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


RULES = sorted(imported_rules())


def test_the_benchmark_imports_the_rules() -> None:
    assert {"hold", "sizing", "pace_of", "backoff_s"} <= set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_the_service_calls_every_rule_that_the_benchmark_plays(rule: str) -> None:
    assert rule in called_in_service()


def test_the_use_case_of_renting_reaches_the_rules() -> None:
    """`rent` calls `decide_renting`, and that calls `hold`."""
    use_case = (ROOT / "service/usecases/rental/rent.py").read_text()
    decision = (ROOT / "service/domain/rental/decisions/renting.py").read_text()
    assert "decide_renting(" in use_case
    assert "spot_choices(" in decision
    assert "hold(" in (ROOT / "service/domain/rental/decisions/market_choice.py").read_text()
