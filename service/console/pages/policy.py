"""The scheduling policy of the cluster, and the form that changes it."""

from __future__ import annotations

from dataclasses import dataclass

from headway.contract.views.decisions import ClusterView, ParameterValue
from service.console.html.fragments import Fragment


@dataclass(frozen=True, slots=True)
class ParameterField:
    """A parameter of the present policy. `is_default` is True if it has its default value."""

    name: str
    value: str
    is_default: bool
    meaning: str


@dataclass(frozen=True, slots=True)
class PolicyPanel:
    """The policy. `choices` are the names and summaries of the policies that the viewer may choose."""

    name: str
    summary: str
    parameters: tuple[ParameterField, ...]
    given: str
    choices: tuple[tuple[str, str], ...]


def policy_fragment(cluster: ClusterView, *, may_operate: bool) -> Fragment:
    """Return the policy of the cluster. With `may_operate`, the viewer may choose another."""
    present = next((one for one in cluster.policies if one.name == cluster.policy), None)
    known = present.parameters if present is not None else []
    panel = PolicyPanel(
        name=cluster.policy,
        summary=present.summary if present is not None else "",
        parameters=tuple(
            ParameterField(
                one.name,
                _text(cluster.parameters.get(one.name, one.default)),
                one.name not in cluster.parameters,
                one.meaning,
            )
            for one in known
        ),
        given=" ".join(f"{name}={_text(value)}" for name, value in cluster.parameters.items()),
        choices=tuple((one.name, one.summary) for one in cluster.policies) if may_operate else (),
    )
    return Fragment("policy", "policy", panel)


def _text(value: ParameterValue) -> str:
    """Return a parameter as users type it: `12`, or `1,2`."""
    numbers = value if isinstance(value, list) else [value]
    return ",".join(f"{one:g}" for one in numbers)
