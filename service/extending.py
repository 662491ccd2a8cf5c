"""Stable names for packages that add policies and providers of machines: see `docs/extending.md`.

A change that breaks such a package raises `service.plugins.PROTOCOL`. The modules behind these names may move.
"""

from headway.contract.values.markets import Market
from service.domain.allocation.knapsack.problem import NOTHING, Row, Solve
from service.domain.cluster.contention_rules import Rhythm
from service.domain.policies.framework.parameter import parameter
from service.domain.policies.framework.policy import (
    Choices,
    Configurations,
    Policy,
    RoundHistory,
    RoundInput,
    StatefulPolicy,
)
from service.domain.policies.framework.queueing import served
from service.domain.policies.framework.solving import solved
from service.domain.policies.framework.speedup import usable_goodput, weights
from service.domain.rental.machines import Found, Machine
from service.domain.rental.offers import Offer
from service.domain.shared.errors import NoCapacity, ProviderRefused, Unavailable
from service.environment import SettingsError, number_of, text_of
from service.usecases.ports.rental import JoinBy, Provider

__all__ = [
    "NOTHING",
    "Choices",
    "Configurations",
    "Found",
    "JoinBy",
    "Machine",
    "Market",
    "NoCapacity",
    "Offer",
    "Policy",
    "Provider",
    "ProviderRefused",
    "Rhythm",
    "RoundHistory",
    "RoundInput",
    "Row",
    "SettingsError",
    "Solve",
    "StatefulPolicy",
    "Unavailable",
    "number_of",
    "parameter",
    "served",
    "solved",
    "text_of",
    "usable_goodput",
    "weights",
]
