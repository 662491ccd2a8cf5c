"""Names of the rules by which the learning rate follows the global batch. Standard library only."""

from __future__ import annotations

from typing import Literal, TypeAlias

Rule: TypeAlias = Literal["adascale", "sqrt", "linear", "none"]
RuleSetting: TypeAlias = Literal["auto", "adascale", "sqrt", "linear", "none"]
"""Rule in a job file. `auto` is the rule that fits the optimizer."""
