"""Names of device kinds, which let the service refuse a typo at submit, and prices by kind."""

from __future__ import annotations

import re
from collections.abc import Mapping

DEVICE_KIND_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,62}$"

KNOWN_DEVICE_KINDS = frozenset(
    """
    cpu
    k80 m60 p4 p40 p100 v100 t4 a2 a10 a10g a16 a30 a40 a100 l4 l40 l40s h100 h200 h800 h20 gh200
    b100 b200 b300 gb200 gb300
    rtx2080ti rtx3090 rtx4090 rtx5090 rtx6000 rtxa4000 rtxa5000 rtxa6000 rtx6000ada titanrtx
    mi100 mi210 mi250 mi250x mi300a mi300x mi325x mi355x
    """.split()  # noqa: SIM905 - read as prose
)
"""Device kinds that a job may request before a node with one has joined; kinds of joined nodes are added."""

MOST_USD_PER_SLOT_H = 10_000.0
_BRANDS = re.compile(r"\b(nvidia|amd|tesla|geforce|quadro|graphics|generation|instinct)\b", re.IGNORECASE)
_VARIANT = re.compile(r"^(sxm\d*|pcie|hbm\d*e?|nvl|\d+gb?|oam)$", re.IGNORECASE)


def kind_name(product: str) -> str:
    """Return the device kind for an NVML product name: the family, without vendor, form factor and memory size.

    `NVIDIA A100-SXM4-80GB` is `a100`, `NVIDIA GeForce RTX 4090` is `rtx4090`, `Tesla T4` is `t4`.
    """
    words = re.split(r"[\s\-_/]+", _BRANDS.sub(" ", product).strip())
    kept = [word for word in words if word and not _VARIANT.match(word)]
    name = re.sub(r"[^a-z0-9.]", "", "".join(kept).lower()).lstrip(".")
    return name[:63] or "gpu"


def is_cpu(kind: str) -> bool:
    """Return True for slots that are CPU cores: `cpu`, or a name such as `cpu-old` for cores of another speed."""
    return kind == "cpu" or kind.startswith("cpu-")


def mix_name(slots: Mapping[str, int]) -> str:
    """Return the name of slots by device kind: `a100` for one kind, `a100:2+t4:2` for several."""
    held = sorted(kind for kind, count in slots.items() if count > 0)
    return held[0] if len(held) == 1 else "+".join(f"{kind}:{slots[kind]}" for kind in held)


def slots_by_kind(name: str, slots: int) -> dict[str, int]:
    """Return the slots by device kind of a name that `mix_name` made; `slots` are those of a single kind."""
    if ":" not in name:
        return {name: slots}
    parts = (part.rpartition(":") for part in name.split("+"))
    return {kind: int(count) for kind, _, count in parts}


def parse_prices(text: str) -> dict[str, float]:
    """Return dollars per slot-hour by device kind, from a list such as `cpu=0.05,a100=2.2`.

    Raises:
        ValueError: the text is not such a list; the message says why.
    """
    prices: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        kind, _, amount = (piece.strip() for piece in part.partition("="))
        try:
            usd = float(amount)
        except ValueError:
            raise ValueError(f"{part!r} is not of the form KIND=USD, such as a100=2.2") from None
        if not re.fullmatch(DEVICE_KIND_PATTERN, kind):
            raise ValueError(f"{kind!r} is not a valid device kind")
        if kind in prices:
            raise ValueError(f"{kind} has two prices")
        if not 0 <= usd <= MOST_USD_PER_SLOT_H:
            raise ValueError(
                f"an hour of {kind} must cost 0 to {MOST_USD_PER_SLOT_H:,.0f} dollars, not {usd:g}"
            )
        prices[kind] = usd
    return prices
