"""Text on what a job gains from another size, as measured or as expected."""

from __future__ import annotations

from headway.contract.views.jobs import SizeOption


def gain_text(now: SizeOption, then: SizeOption, unit: str = "samples") -> str:
    """Return the speeds of a job at its present and at its next size."""
    if now.goodput_samples_per_s is None or then.goodput_samples_per_s is None:
        return f"{then.speedup / now.speedup:.2f} times the speed is expected"
    source = "measured" if now.measured and then.measured else "expected"
    return f"{now.goodput_samples_per_s:,.0f} -> {then.goodput_samples_per_s:,.0f} {unit}/s {source}"


def tried_text(now: SizeOption, then: SizeOption, hope_samples_per_s: float, unit: str = "samples") -> str:
    """Return the reason that a job tries a larger size, which is not expected to be faster but may be."""
    if now.goodput_samples_per_s is None or then.goodput_samples_per_s is None:
        return "tries a size that is not measured yet"
    return (
        f"tries it: {gain_text(now, then, unit)}, and {hope_samples_per_s:,.0f} or more in one of ten cases"
    )
