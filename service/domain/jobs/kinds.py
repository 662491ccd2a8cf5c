"""Device kinds of a generation's members, and their expected speeds where the kinds differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from headway.contract.agents import Member
from headway.contract.values.devices import mix_name
from service.domain.jobs.membership import Members


def with_kinds(members: Members, kind_of: Callable[[Member], str], speeds: Mapping[str, float]) -> Members:
    """Return the members with their kinds and expected relative `speeds` by kind; without both on one kind."""
    kinds = [kind_of(one) for one in members]
    if len(set(kinds)) < 2:
        return tuple(one.model_copy(update={"device_kind": "", "speed": 1.0}) for one in members)
    return tuple(
        one.model_copy(update={"device_kind": kind, "speed": speeds.get(kind, 1.0)})
        for one, kind in zip(members, kinds, strict=True)
    )


def kind_of_members(members: Members, otherwise: str) -> str:
    """Return the device kind of a generation, of two kinds `a100:2+t4:2`; `otherwise` where members have none."""
    kinds = Counter(one.device_kind for one in members if one.device_kind)
    return mix_name(kinds) if kinds else otherwise
