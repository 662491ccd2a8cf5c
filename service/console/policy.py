"""Which policy the cluster follows, and the form to choose another."""

from __future__ import annotations

from dataclasses import dataclass

from headway.contract.decisions import ClusterView, ParameterValue
from service.console.pieces import Piece


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that the present policy can be given. `own`: it has its own value, which nobody changed."""

    name: str
    value: str
    own: bool
    meaning: str


@dataclass(frozen=True, slots=True)
class PolicyPanel:
    """The policy. `choices` are names and summaries of those that whoever looks may choose from; none where they may not."""

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    given: str
    choices: tuple[tuple[str, str], ...]


def policy_piece(cluster: ClusterView, *, operates: bool) -> Piece:
    """The policy of the cluster; `operates`: whoever looks may choose another."""
    present = next((one for one in cluster.policies if one.name == cluster.policy), None)
    known = present.parameters if present is not None else []
    panel = PolicyPanel(
        name=cluster.policy,
        summary=present.summary if present is not None else "",
        parameters=tuple(
            Parameter(
                one.name,
                _text(cluster.parameters.get(one.name, one.default)),
                one.name not in cluster.parameters,
                one.meaning,
            )
            for one in known
        ),
        given=" ".join(f"{name}={_text(value)}" for name, value in cluster.parameters.items()),
        choices=tuple((one.name, one.summary) for one in cluster.policies) if operates else (),
    )
    return Piece("policy", "policy", panel)


def _text(value: ParameterValue) -> str:
    """`12`, or `1,2`: as it is typed."""
    numbers = value if isinstance(value, list) else [value]
    return ",".join(f"{one:g}" for one in numbers)
