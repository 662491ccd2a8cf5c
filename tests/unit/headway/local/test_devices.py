"""Division of a machine's GPUs among the agents of `headway up`."""

from __future__ import annotations

import pytest

from headway.local.devices import Share, share
from headway.local.processes import LocalError


@pytest.mark.parametrize(
    ("agents", "slots", "kind", "gpus", "expected"),
    [
        (1, None, None, 0, Share(None, None)),
        (2, None, None, 0, Share(4, None)),
        (2, 2, None, 0, Share(2, None)),
        (2, None, None, 8, Share(4, None)),
        (2, 2, None, 8, Share(2, None)),
        (1, None, None, 8, Share(None, None)),
        (2, 2, "cpu", 8, Share(2, "cpu")),
        (2, 2, "h100", 4, Share(2, "h100")),
    ],
)
def test_a_share_of_a_machine_divides_its_devices(
    agents: int, slots: int | None, kind: str | None, gpus: int, expected: Share
) -> None:
    assert share(agents, slots, kind, gpus=gpus, cpus=8) == expected


def test_fewer_gpus_than_slots_give_cpu_slots_with_a_sentence() -> None:
    found = share(2, 2, None, gpus=1, cpus=8)
    assert (found.slots, found.device_kind) == (2, "cpu")
    assert "1 GPU, fewer than the 4 slots" in found.note


def test_fewer_gpus_than_slots_of_a_named_kind_are_refused() -> None:
    with pytest.raises(LocalError, match="--device-kind cpu"):
        share(2, 2, "h100", gpus=1, cpus=8)
