"""Faults of devices, each noticed once; lasting readings; results of probes."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.agents import SlotInfo
from headway.contract.health import DeviceFault, DeviceHealth, FaultCause
from headway.errors import HeadwayError
from tests.unit.worker_agent.fake_nvml import Event, FakeNvml, FakeNvmlError
from worker_agent.devices.inventory import find_slots, keep_places, with_health
from worker_agent.devices.nvml import NvmlDevices
from worker_agent.devices.probing import SLOWER, ProbeOutcome, judge
from worker_agent.devices.watch import (
    COOLED_BY_C,
    GONE_READINGS,
    HOT_READINGS,
    DeviceFinding,
    DeviceWatch,
    DeviceWatcher,
    Reading,
    XidEvent,
)
from worker_agent.launcher.probe import REPEATS, try_out
from worker_agent.link.outbox import Outbox

LIMIT_C = 90


def gpu(uuid: str, index: int = 0, kind: str = "a100", **fields: Any) -> SlotInfo:
    return SlotInfo(index=index, device_kind=kind, uuid=uuid, **fields)


def at(temperature_c: int, **fields: Any) -> Reading:
    return Reading(uuid="A", temperature_c=temperature_c, slowdown_c=LIMIT_C, **fields)


def watch() -> DeviceWatch:
    return DeviceWatch([gpu("A", 0), gpu("B", 3)])


def found(readings: Sequence[Sequence[Reading]]) -> list[DeviceFinding]:
    one = DeviceWatch([gpu("A")])
    return [finding for now in readings for finding in one.look(now)]


# Watching


def test_an_xid_is_reported_of_the_slot_that_has_the_device() -> None:
    one = watch()
    assert one.xid(XidEvent("B", 79)) == [DeviceFinding(3, FaultCause.XID, 79)]
    assert one.xid(XidEvent("elsewhere", 79)) == []


def test_errors_are_reported_when_they_grow() -> None:
    counts = [4, 4, 6, 6, None, 6, 7, 0, 2]
    said = found([[Reading(uuid="A", ecc_uncorrected=count)] for count in counts])
    assert [(one.cause, one.code, one.message) for one in said] == [
        (FaultCause.ECC, 6, "new memory errors: 2, in total: 6"),
        (FaultCause.ECC, 7, "new memory errors: 1, in total: 7"),
        (FaultCause.ECC, 2, "new memory errors: 2, in total: 2"),  # since the driver was loaded anew
    ]
    assert not any(one.lasting for one in said)


def test_memory_without_spare_rows_is_reported_once_and_lasts() -> None:
    said = found([[Reading(uuid="A", ecc_uncorrected=9, out_of_spare_rows=True)]] * 3)
    assert said == [DeviceFinding(0, FaultCause.ECC, 9, lasting=True)]


def test_a_device_that_is_missing_for_a_moment_is_not_gone() -> None:
    there, missing = [Reading(uuid="A")], list[Reading]()
    assert found([there, *[missing] * (GONE_READINGS - 1), there, missing]) == []
    (gone,) = found([there, *[missing] * 10])
    assert gone.cause is FaultCause.GONE
    back_and_gone_again = found([*[missing] * 3, there, *[missing] * 3])
    assert [one.cause for one in back_and_gone_again] == [FaultCause.GONE] * 2


def test_hot_is_said_once_until_it_has_cooled() -> None:
    hot = [at(LIMIT_C + 2)] * HOT_READINGS
    (one,) = found([[reading] for reading in hot])
    assert (one.cause, one.code) == (FaultCause.TEMPERATURE, LIMIT_C + 2)
    assert found([[at(LIMIT_C)]] * (HOT_READINGS - 1) + [[at(LIMIT_C - 1)]] * 9) == [], "not for long"
    warm = [at(LIMIT_C - 1), at(LIMIT_C - COOLED_BY_C), *hot]
    assert len(found([[reading] for reading in [*hot, *warm, *warm]])) == 1
    cooled = [at(LIMIT_C - COOLED_BY_C - 1), *hot]
    assert len(found([[reading] for reading in [*hot, *cooled]])) == 2


@given(st.lists(st.integers(LIMIT_C - COOLED_BY_C, LIMIT_C + 10), max_size=60))
def test_about_the_limit_it_is_said_once_at_most(temperatures: list[int]) -> None:
    assert len(found([[at(one)] for one in temperatures])) <= 1


def test_cores_are_not_watched() -> None:
    cores = DeviceWatch([SlotInfo(index=0, device_kind="cpu")])
    assert not cores.watches
    assert cores.look([]) == []
    assert watch().watches


class ScriptedDevices:
    """Says what it is told to, then stops the watcher."""

    def __init__(self, readings: list[list[Reading]], xids: list[list[XidEvent] | None]) -> None:
        self.stopping = threading.Event()
        self.closed = False
        self._readings = iter(readings)
        self._xids = iter(xids)

    def readings(self) -> Sequence[Reading]:
        return self._next(self._readings, [])

    def xids(self, timeout_s: float) -> Sequence[XidEvent] | None:
        return self._next(self._xids, [])

    def close(self) -> None:
        self.closed = True

    def _next(self, script: Any, last: Any) -> Any:
        try:
            return next(script)
        except StopIteration:
            self.stopping.set()
            return last


def faults(outbox: Outbox) -> list[DeviceFault]:
    entries, _ = outbox.take(100)
    assert all(isinstance(one, DeviceFault) for one in entries)
    return list(entries)  # type: ignore[arg-type]


def test_what_is_found_is_reported(tmp_path: Path) -> None:
    hot = [[at(LIMIT_C)]] * HOT_READINGS
    devices = ScriptedDevices(hot, [[XidEvent("A", 31)], None, [], [XidEvent("A", 79)]])
    outbox = Outbox(tmp_path / "outbox.jsonl")
    watcher = DeviceWatcher(
        devices=devices, slots=[gpu("A", 2)], outbox=outbox, stopping=devices.stopping, poll_s=0.001
    )
    watcher.poll()
    devices.stopping.clear()
    watcher.listen()
    assert devices.closed
    assert [(one.slot, one.cause, one.code) for one in faults(outbox)] == [
        (2, FaultCause.TEMPERATURE, LIMIT_C),
        (2, FaultCause.XID, 31),
        (2, FaultCause.XID, 79),
    ]
    outbox.close()


# Numbers of devices


def test_devices_keep_their_numbers() -> None:
    a, b, c = gpu("A", 0), gpu("B", 1), gpu("C", 2)
    assert keep_places([], [a, b, c]) == [a, b, c]
    shifted = keep_places([a, b, c], [gpu("B", 0, health=DeviceHealth(temperature_c=30)), gpu("C", 1)])
    assert [(one.index, one.uuid) for one in shifted] == [(0, "A"), (1, "B"), (2, "C")]
    assert shifted[1].health.temperature_c == 30
    replaced = keep_places([a, b, c], [gpu("B", 0), gpu("C", 1), gpu("D", 2)])
    assert [(one.index, one.uuid) for one in replaced] == [(0, "D"), (1, "B"), (2, "C")]
    added = keep_places([a], [gpu("D", 0), gpu("A", 1)])
    assert [(one.index, one.uuid) for one in added] == [(0, "A"), (1, "D")]


uuids = st.lists(st.sampled_from("ABCDEFG"), unique=True, max_size=7)


@given(uuids, uuids)
def test_whatever_comes_and_goes(before: list[str], now: list[str]) -> None:
    """No number twice, whoever stays keeps his, and nobody who is there is left out."""
    known = [gpu(uuid, index) for index, uuid in enumerate(before)]
    placed = keep_places(known, [gpu(uuid, index) for index, uuid in enumerate(now)])
    numbers = {one.uuid: one.index for one in placed}
    assert len({one.index for one in placed}) == len(placed) == len(numbers)
    assert set(now) <= set(numbers)
    assert len(placed) == max(len(before), len(set(now) | (set(before) & set(now))))
    for slot in known:
        assert numbers.get(slot.uuid, slot.index) == slot.index


def test_a_host_whose_driver_has_failed_does_not_become_one_of_cores() -> None:
    known = [gpu("A", 0, health=DeviceHealth(temperature_c=40)), gpu("B", 1)]
    offered = find_slots(None, None, known, gpus=[])
    assert [(one.uuid, one.health) for one in offered] == [("A", DeviceHealth()), ("B", DeviceHealth())]
    assert [one.uuid for one in find_slots(1, None, known, gpus=[])] == ["A"]
    assert {one.device_kind for one in find_slots(2, "cpu", known)} == {"cpu"}
    assert [one.device_kind for one in find_slots(2, "cpu-old", known)] == ["cpu-old", "cpu-old"]
    with pytest.raises(HeadwayError, match="has 2 GPUs"):
        find_slots(3, "a100", known, gpus=[])
    cores = [SlotInfo(index=0, device_kind="cpu")]
    assert find_slots(None, None, cores, gpus=[gpu("A")]) == [gpu("A")]


def test_health_is_that_of_the_same_device() -> None:
    slots = [gpu("A", 0), gpu("B", 1)]
    now = with_health(slots, [gpu("B", 0, health=DeviceHealth(temperature_c=50))])
    assert [(one.index, one.uuid, one.health.temperature_c) for one in now] == [(0, "A", None), (1, "B", 50)]
    cores = [SlotInfo(index=0, device_kind="cpu")]
    assert with_health(cores) == cores


# Probes


def said(product_s: float = 0.002, wrong: int = 0) -> str:
    return json.dumps({"product_s": product_s, "wrong": wrong, "of": 8})


@pytest.mark.parametrize(
    ("output", "errors", "code", "first_s", "expected"),
    [
        (said(), "", 0, None, ProbeOutcome(True, "2.00 ms for a matrix product", 0.002)),
        (said(), "", 0, 0.002 / SLOWER, ProbeOutcome(True, "2.00 ms for a matrix product", 0.002)),
        (
            said(),
            "",
            0,
            0.001,
            ProbeOutcome(False, "2.00 ms for a matrix product, but 1.00 ms at the first probe", 0.002),
        ),
        (said(wrong=3), "", 0, None, ProbeOutcome(False, "3 of 8 matrix products were wrong")),
        ("", "Traceback\nRuntimeError: CUDA error\n", 1, None, ProbeOutcome(False, "the probe failed: RuntimeError: CUDA error")),
        ("", "", -9, None, ProbeOutcome(False, "the probe failed: it exited with code -9 and no output")),
        ("no JSON", "", 0, None, ProbeOutcome(False, "the probe failed: it exited with code 0 and no output")),
        ("[]", "", 0, None, ProbeOutcome(False, "the probe failed: it exited with code 0 and no output")),
        ("", "", None, None, ProbeOutcome(False, "the probe did not end within 120 s")),
    ],
)  # fmt: skip
def test_what_a_probe_says(
    output: str, errors: str, code: int | None, first_s: float | None, expected: ProbeOutcome
) -> None:
    assert judge(output, errors, code, first_s, 120) == expected


class Wrong:
    """torch, with a processor that gets one bit of some products wrong."""

    def __init__(self, torch: Any, times: int) -> None:
        self._torch = torch
        self._left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def randint(self, *arguments: Any, **how: Any) -> Any:
        made = self._torch.randint(*arguments, **how)
        return made.as_subclass(self._factor()) if how.get("dtype") is self._torch.float32 else made

    def _factor(self) -> type:
        outer, tensor = self, self._torch.Tensor

        class Factor(tensor):  # type: ignore[misc,valid-type]
            def __matmul__(self, other: Any) -> Any:
                product = self.as_subclass(tensor) @ other.as_subclass(tensor)
                if product.dtype is outer._torch.float32 and outer._left:
                    outer._left -= 1
                    product[3, 5] += 1.0
                return product

        return Factor


@pytest.mark.parametrize("times", [0, 1, REPEATS])
def test_one_wrong_element_of_a_product_is_seen(times: int) -> None:
    torch = pytest.importorskip("torch")
    result = try_out(Wrong(torch, times), cuda=False)
    assert (result["wrong"], result["of"]) == (times, REPEATS)
    assert result["product_s"] > 0


# NVML


def test_readings_leave_out_what_a_device_cannot_say_and_devices_that_are_lost() -> None:
    whole = {"uuid": b"A", "temperature": 50, "slowdown": 90, "ecc": 2, "rows": [0, 1, 0, 1]}
    nvml = FakeNvml({0: whole, 1: {}, 2: {"uuid": "C"}})
    assert NvmlDevices(nvml).readings() == [
        Reading(uuid="A", temperature_c=50, slowdown_c=90, ecc_uncorrected=2, out_of_spare_rows=True),
        Reading(uuid="C"),
    ]
    nvml.driver = False
    assert NvmlDevices(nvml).readings() == []
    assert nvml.open == 0


def test_xids_come_with_the_device_that_they_are_about() -> None:
    nvml = FakeNvml({0: {"uuid": "A"}, 1: {"uuid": "B", "events": True}})
    devices = NvmlDevices(nvml)
    nvml.events = [Event(4097, 79), Event(4097, 1, kind=2), Event(4096, 31), FakeNvmlError(15)]
    assert devices.xids(0.1) == [XidEvent("B", 79)]
    assert nvml.registered == [4097], "the other has no events"
    assert devices.xids(0.1) == []
    assert devices.xids(0.1) == []
    assert devices.xids(0.1) is None, "a device is lost: listen anew"
    assert (nvml.open, nvml.registered) == (0, [])
    assert devices.xids(0.1) == []
    assert nvml.registered == [4097]
    nvml.driver = False
    devices.close()
    assert devices.xids(0.1) is None


def test_the_real_nvml_on_a_host_without_a_driver() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        devices = NvmlDevices(pynvml)
        assert devices.readings() == []
        assert devices.xids(0.01) is None
        devices.close()
    else:
        pynvml.nvmlShutdown()
        pytest.skip("this host has a driver")
