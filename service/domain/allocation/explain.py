"""The reason of every decision, as a constant for programs and a sentence for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headway.contract.agents import NodeState
from headway.contract.jobs import Reason, SizeOption
from headway.contract.spec import Resize
from service.domain.allocation.configurations import JobTable
from service.domain.allocation.problem import Configuration
from service.domain.cluster import SlotKey, Snapshot
from service.domain.jobs import Allocation


@dataclass(frozen=True, slots=True)
class Sentence:
    """A reason and its explanation."""

    reason: Reason
    message: str


def why_start(snapshot: Snapshot, table: JobTable, chosen: Configuration, allocation: Allocation) -> Sentence:
    """Why a waiting job starts at this size."""
    where = ", ".join(snapshot.nodes[node].name for node in allocation)
    text = f"{_slots(chosen.slots, chosen.device_kind)} on {where}"
    may_grow = table.job.spec.elastic.resize is not Resize.NEVER and max(table.job.sizes) > chosen.slots
    if may_grow and not any(option.measured for option in table.options):
        text += "; starts small, and grows once its speed is measured"
    return Sentence(Reason.ALLOCATED, text)


def why_keep(table: JobTable) -> Sentence:
    """Why a running job stays as it is."""
    refused = [f"{one.slots} slots: {one.note}" for one in table.options if one.note not in {"", "current"}]
    text = f"{_slots(table.current_size, table.current_kind)} is the best choice now"
    if table.job.pinned_size == table.current_size:
        text = f"fixed at {_slots(table.current_size, table.current_kind)} by request"
    return Sentence(Reason.PROGRESSING, "; ".join([text, *refused]))


def why_change(snapshot: Snapshot, table: JobTable, chosen: Configuration) -> Sentence:
    """Why a running job gets another size, or other slots."""
    step = (
        f"from {_slots(table.current_size, table.current_kind)} to {_slots(chosen.slots, chosen.device_kind)}"
    )
    forced = _forced_out(snapshot, table)
    if forced is not None:
        unchanged = (chosen.slots, chosen.device_kind) == (table.current_size, table.current_kind)
        change = f"moves its {_slots(chosen.slots, chosen.device_kind)}" if unchanged else step
        return Sentence(forced.reason, f"{change}: {forced.message}")
    if table.job.pinned_size == chosen.slots:
        return Sentence(Reason.USER_REQUEST, f"{step}, as requested")
    now = _option(table, table.current_kind, table.current_size)
    then = _option(table, chosen.device_kind, chosen.slots)
    if now is not None and then is not None and then.speedup > now.speedup:
        return Sentence(Reason.BETTER_ALLOCATION, f"{step}: {_gain(now, then)}")
    return Sentence(Reason.BETTER_ALLOCATION, f"{step}: makes room for jobs that gain more from the slots")


def why_back_off(table: JobTable) -> Sentence:
    """Why a running job does not get new slots although they would be better for it, or it should leave its own."""
    again = f" from {table.job.grow_after:%H:%M:%S} UTC on" if table.job.grow_after else ""
    failures = table.job.growth_failures
    times = "once" if failures == 1 else f"{failures} times in a row"
    return Sentence(
        Reason.START_FAILED,
        f"{_slots(table.current_size, table.current_kind)} for now: new ranks did not come up {times}; "
        f"tried again{again}; see the job's events",
    )


def why_vacate(snapshot: Snapshot, table: JobTable) -> Sentence:
    """Why a running job loses everything."""
    forced = _forced_out(snapshot, table)
    if forced is not None:
        return Sentence(forced.reason, f"{forced.message} and no other node has room; waits")
    return Sentence(Reason.PREEMPTED, "its slots go to jobs of higher priority; goes on when there is room")


def why_wait(snapshot: Snapshot, table: JobTable, free: Sequence[SlotKey]) -> Sentence:
    """Why a job gets nothing. `free` are the slots that this round leaves over."""
    job = table.job
    alive = [node for node in snapshot.nodes.values() if node.state is not NodeState.LOST]
    if not alive:
        return Sentence(
            Reason.WAITING_FOR_CAPACITY,
            "no node has joined the cluster; start one with `headway agent` or `headway up`",
        )
    present = Counter(kind for node in alive if node.state is NodeState.READY for kind in node.slots.values())
    wanted = job.spec.resources.devices or tuple(sorted(present))
    in_service = sum(present[kind] for kind in wanted)
    if wanted and not any(present[kind] for kind in wanted):
        there = ", ".join(sorted(present)) or "none in service"
        return Sentence(
            Reason.NO_SUCH_DEVICE, f"no node in service has {' or '.join(wanted)}; there is: {there}"
        )
    need = min(job.sizes)
    largest = max((present[kind] for kind in wanted), default=0)
    if need > largest:
        return Sentence(
            Reason.WAITING_FOR_CAPACITY,
            f"needs at least {_slots(need, None)} of one kind, and the nodes in service have {largest}",
        )
    holders = Counter(
        snapshot.jobs[holder].name for holder in snapshot.held.values() if holder in snapshot.jobs
    )
    largest_first = sorted(holders.items(), key=lambda holder: (-holder[1], holder[0]))
    held_by = ", ".join(f"{name} ({slots})" for name, slots in largest_first[:5])
    left = sum(1 for key in free if snapshot.kind_of(key) in wanted)
    return Sentence(
        Reason.WAITING_FOR_CAPACITY,
        f"needs at least {_slots(need, None)}; {left} of {in_service} are left"
        + (f"; held by {held_by}" if held_by else ""),
    )


def _forced_out(snapshot: Snapshot, table: JobTable) -> Sentence | None:
    """Why the job cannot keep all of its slots; None when it could."""
    leaving = [key for key in snapshot.slots_held_by(table.job.id) if key not in table.keepable]
    if not leaving:
        return None
    names = ", ".join(sorted({snapshot.nodes[key.node_id].name for key in leaving}))
    if any(snapshot.kind_of(key) != table.current_kind for key in leaving):
        return Sentence(Reason.BAD_DEVICE, f"{names} no longer has every slot that it had")
    return Sentence(Reason.NODE_DRAINED, f"{names} is draining")


def _option(table: JobTable, kind: str | None, slots: int) -> SizeOption | None:
    return next((one for one in table.options if one.device_kind == kind and one.slots == slots), None)


def _gain(now: SizeOption, then: SizeOption) -> str:
    if now.goodput_samples_per_s is None or then.goodput_samples_per_s is None:
        return f"{then.speedup / now.speedup:.2f} times the speed is expected"
    source = "measured" if then.measured else "expected"
    return f"{now.goodput_samples_per_s:,.0f} -> {then.goodput_samples_per_s:,.0f} samples/s {source}"


def _slots(count: int, kind: str | None) -> str:
    return " ".join(part for part in (str(count), kind, "slot" if count == 1 else "slots") if part)
