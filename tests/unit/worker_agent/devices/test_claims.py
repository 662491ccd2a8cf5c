"""Claims on GPUs: one agent of a host offers a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.contract.agents import SlotInfo
from headway.errors import HeadwayError
from worker_agent.devices.claims import DeviceClaims
from worker_agent.devices.inventory import find_slots


def gpus(count: int) -> list[SlotInfo]:
    return [SlotInfo(index=index, device_kind="h100", uuid=f"GPU-{index}") for index in range(count)]


def offered(
    claims: DeviceClaims, wanted: int | None, count: int, known: list[SlotInfo] | None = None
) -> list[tuple[int, str | None]]:
    slots = find_slots(wanted, None, known or [], gpus(count), claims.claim)
    return [(slot.index, slot.uuid) for slot in slots]


def test_two_agents_with_slots_share_out_the_gpus(tmp_path: Path) -> None:
    first, second = DeviceClaims("local-1", tmp_path), DeviceClaims("local-2", tmp_path)
    assert offered(first, 2, 8) == [(0, "GPU-0"), (1, "GPU-1")]
    assert offered(second, 2, 8) == [(0, "GPU-2"), (1, "GPU-3")]


@pytest.mark.parametrize("wanted", [None, 1])
def test_a_gpu_of_another_agent_is_refused_with_its_name(tmp_path: Path, wanted: int | None) -> None:
    first, second = DeviceClaims("local-1", tmp_path), DeviceClaims("local-2", tmp_path)
    assert offered(first, 1, 1) == [(0, "GPU-0")]
    with pytest.raises(HeadwayError, match="GPU-0 by agent local-1"):
        offered(second, wanted, 1)


def test_a_gpu_is_free_again_after_its_agent(tmp_path: Path) -> None:
    first, second = DeviceClaims("local-1", tmp_path), DeviceClaims("local-2", tmp_path)
    offered(first, 1, 1)
    first.release()
    assert offered(second, 1, 1) == [(0, "GPU-0")]


def test_sharing_agents_offer_the_same_gpu(tmp_path: Path) -> None:
    first, second = DeviceClaims("local-1", tmp_path), DeviceClaims("local-2", tmp_path, shared=True)
    assert offered(first, 1, 1) == offered(second, 1, 1)


def test_an_agent_that_restarts_claims_the_gpus_that_it_had(tmp_path: Path) -> None:
    known = [one.model_copy(update={"index": place}) for place, one in enumerate(gpus(4)[2:])]
    assert offered(DeviceClaims("local-2", tmp_path), 2, 4, known) == [(0, "GPU-2"), (1, "GPU-3")]


def test_a_known_gpu_that_another_agent_took_is_not_offered(tmp_path: Path) -> None:
    first, second = DeviceClaims("local-1", tmp_path), DeviceClaims("local-2", tmp_path)
    offered(first, 1, 2)
    assert offered(second, 1, 2, gpus(1)) == [(0, "GPU-1")]
