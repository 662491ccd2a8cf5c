"""The reason of every decision, as a constant for programs and a sentence for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from headway.contract.jobs import Reason, SizeOption
from headway.contract.spec import Resize
from service.domain.allocation.eligibility import Holding, is_left_over
from service.domain.allocation.lending import why_above_quota, why_given_up
from service.domain.allocation.notes import MIN_GAIN, MIN_RUNTIME_S, Note
from service.domain.allocation.placement import Placement, describe_move
from service.domain.allocation.round import Round
from service.domain.allocation.sentences import Sentence, named
from service.domain.allocation.spending import Bar
from service.domain.allocation.tenancy import Claim
from service.domain.jobs import Allocation, Job
from service.domain.policies.policy import Choices
from service.domain.pools import Pool, anchor_in, slots_in, slots_of

_NAMED = 5
"""At most so many jobs are named in a sentence."""


_NOTES = {
    Note.CURRENT: "current",
    Note.NOT_MEASURED: "nothing is measured of it: it is not restarted for a guess a second time",
    Note.NOT_WORTH_IT: "not expected to be faster than fewer slots, as measured",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One job of a round: its row, and the column that it gets, -1 for none. `given_up_for` is the project whose guarantee
    leaves it less than the policy would give it.
    """

    round: Round
    row: int
    column: int
    options: tuple[SizeOption, ...]
    given_up_for: Claim | None = None

    @property
    def job(self) -> Job:
        """The job."""
        return self.round.jobs[self.row]

    @property
    def holding(self) -> Holding:
        """What it holds."""
        return self.round.holdings[self.job.id]

    @property
    def chosen(self) -> str:
        """What it gets, for people."""
        return self.round.columns.text_of(self.column)

    @property
    def present(self) -> str:
        """What it holds, for people."""
        held = self.held
        # A slot that its node no longer reports lies in no pool.
        if not held or sum(held.values()) < self.holding.size:
            return slots_of(self.holding.size, self.holding.kind)
        return slots_in(held)

    @property
    def held(self) -> dict[Pool, int]:
        """How many slots it holds in which pool."""
        snapshot = self.round.snapshot
        pools = map(snapshot.pool_of, snapshot.slots_held_by(self.job.id))
        return Counter(pool for pool in pools if pool is not None)

    @property
    def search(self) -> str:
        """Why its search wants it on what it gets; empty where it does not, or there is none."""
        step = self.round.search.steps.get(self.job.id)
        if step is None or step.target != self.column or self.column < 0:
            return ""
        return f"search: {step.reason}"

    def option(self, *, of_now: bool) -> SizeOption | None:
        """What is known of the size that it has now, or of the one that it gets."""
        parts = self.held if of_now else self.round.columns.parts_of(self.column)
        slots = self.holding.size if of_now else sum(parts.values())
        if not parts:
            return None
        pool, anchor = max(parts), anchor_in(parts)
        return next(
            (one for one in self.options if (one.pool, one.slots, one.anchor) == (pool.name, slots, anchor)),
            None,
        )


def all_options(round_: Round, choices: Choices) -> list[tuple[SizeOption, ...]]:
    """`options_of` every job (J,). Jobs that wait and are alike, as in a long queue, share theirs."""
    shared: dict[tuple[bytes, ...], tuple[SizeOption, ...]] = {}
    known = round_.learned.measured | round_.learned.related
    found = []
    for row, job in enumerate(round_.jobs):
        if round_.holdings[job.id].size:
            found.append(options_of(round_, row, choices))
            continue
        parts = (
            round_.notes[row],
            round_.table.goodput[row],
            choices.utility[row],
            round_.tried[row],
            known[row],
        )
        key = tuple(part.tobytes() for part in parts)
        if key not in shared:
            shared[key] = options_of(round_, row, choices)
        found.append(shared[key])
    return found


def options_of(round_: Round, row: int, choices: Choices) -> tuple[SizeOption, ...]:
    """Every configuration that the round weighed for a job, whether it may be chosen or not."""
    notes = round_.notes[row]
    columns, table = round_.columns, round_.table
    configurations = columns.configurations
    known = bool(round_.learned.measured[row] or round_.learned.related[row])
    shown = np.flatnonzero((notes != Note.NOT_ALLOWED) & (notes != Note.TOO_FAR))
    if not len(shown):
        return ()
    # Against one slot, as far as the table knows: against the smallest size at one slot's share of it.
    base = np.where(table.goodput[row] > 0, table.goodput[row] / configurations.slots, np.inf)
    smallest = shown[configurations.slots[shown].argmin()]
    one_slot = base[smallest] if np.isfinite(base[smallest]) else 1.0
    return tuple(
        SizeOption(
            device_kind=columns.pools[configurations.kind[column]].kind,
            market=columns.pools[configurations.kind[column]].market,
            anchor=anchor_in(columns.parts_of(column)),
            usd_per_h=float(configurations.usd_per_h[column]),
            slots=int(configurations.slots[column]),
            nodes=int(configurations.nodes[column]),
            goodput_samples_per_s=float(table.goodput[row, column]) if known else None,
            speedup=float(table.goodput[row, column] / one_slot),
            measured=bool(round_.tried[row, column]),
            utility=_weighed(float(choices.utility[row, column])),
            note=note_text(round_, row, Note(notes[column])),
        )
        for column in shown.tolist()
    )


def note_text(round_: Round, row: int, note: Note) -> str:
    """Why a job may not have a configuration now; empty when it may."""
    job, snapshot = round_.jobs[row], round_.snapshot
    match note:
        case Note.TOO_YOUNG:
            ran_s = (snapshot.now - job.state_since).total_seconds()
            return f"started {ran_s:.0f} s ago; a change waits until {MIN_RUNTIME_S:.0f} s"
        case Note.BACK_OFF:
            return f"new ranks did not come up; tried again from {job.grow_after:%H:%M:%S} UTC on"
        case Note.NO_GAIN:
            change = "pause" if job.live else "restart"
            return f"less than {MIN_GAIN - 1:.0%} faster than now: not worth a {change}"
        case Note.OVER_BUDGET:
            left = snapshot.limits[job.id].left_usd
            return f"would cost more until its end than the ${left:,.2f} that it may still spend"
        case Note.DEADLINE:
            return f"until its deadline ({job.spec.goal.deadline:%Y-%m-%d %H:%M} UTC) there is no time to lose a machine"
    return _NOTES.get(note, "")


def why_start(case: Case, allocation: Allocation) -> Sentence:
    """Why a waiting job starts at this size."""
    nodes = case.round.snapshot.nodes
    text = f"{case.chosen} on {', '.join(nodes[node].name for node in allocation)}"
    slots = int(case.round.columns.configurations.slots[case.column])
    may_grow = case.job.spec.elastic.resize is not Resize.NEVER and max(case.job.sizes) > slots
    if may_grow and not any(option.measured for option in case.options):
        by_class = "goes by what jobs of its class have shown"
        alone = "starts small, and grows once its speed is measured"
        text += f"; {case.search or (by_class if case.round.learned.related[case.row] else alone)}"
    elif case.search:
        text += f"; {case.search}"
    return Sentence(Reason.ALLOCATED, text)


def why_keep(case: Case) -> Sentence:
    """Why a running job stays as it is."""
    text = f"{case.present} is the best choice now"
    if case.job.pinned_size == case.holding.size:
        text = f"fixed at {case.present} by request"
    elif case.search:
        return Sentence(Reason.PROGRESSING, f"{case.present}: {case.search}")
    refused = [f"{one.slots} slots: {one.note}" for one in case.options if one.note not in {"", "current"}]
    return Sentence(Reason.PROGRESSING, "; ".join([text, *refused[:_NAMED]]))


def why_change(case: Case, current: Allocation, placement: Placement) -> Sentence:
    """Why a running job gets another size, or other slots."""
    forced = _forced_out(case)
    same = case.chosen == case.present
    step = f"from {case.present} to {case.chosen}"
    if forced is not None:
        change = f"moves its {case.chosen}" if same else step
        return Sentence(forced.reason, f"{change}: {forced.message}")
    if same:
        snapshot = case.round.snapshot
        heir = snapshot.jobs.get(placement.makes_room_for)
        names = {node.id: node.name for node in snapshot.nodes.values()}
        whom = named([heir], case.job.spec.project) if heir else ""
        text = describe_move(current, placement.allocation, heir=whom, node_names=names)
        return Sentence(Reason.BETTER_ALLOCATION, text)
    barred = _barred(case)
    if barred is not None:
        return Sentence(barred.reason, f"{step}: {barred.message}")
    if int(case.round.columns.configurations.slots[case.column]) == case.job.pinned_size:
        return Sentence(Reason.USER_REQUEST, f"{step}, as requested")
    if is_left_over(case.job, case.holding.size):
        return Sentence(Reason.BETTER_ALLOCATION, f"{step}: a size that its job file allows")
    return Sentence(Reason.BETTER_ALLOCATION, f"{step}: {case.search or _why_better(case)}")


def _why_better(case: Case) -> str:
    """Why something else is better than what a job has."""
    now, then = case.option(of_now=True), case.option(of_now=False)
    if now is not None and then is not None and then.speedup > now.speedup > 0:
        return _gain(now, then)
    if now is not None and then is not None and now.slots == then.slots and _is_cheaper(then, now):
        return f"as many slots for ${then.usd_per_h:,.2f} instead of ${now.usd_per_h:,.2f} an hour"
    if case.given_up_for is not None:
        return why_given_up(case.given_up_for)
    above = why_above_quota(case.round.snapshot, case.job.spec.project)
    return above or "makes room for jobs that gain more from the slots"


def why_back_off(case: Case) -> Sentence:
    """Why a running job does not get new slots although they would be better for it, or it should leave its own."""
    job = case.job
    again = f" from {job.grow_after:%H:%M:%S} UTC on" if job.grow_after else ""
    times = "once" if job.growth_failures == 1 else f"{job.growth_failures} times in a row"
    return Sentence(
        Reason.START_FAILED,
        f"{case.present} for now: new ranks did not come up {times}; tried again{again}; see the job's events",
    )


def why_put_off(case: Case, until: str) -> Sentence:
    """Why a running job does not have what is better for it yet."""
    return Sentence(
        Reason.PROGRESSING,
        f"{case.present} for now: changes to {case.chosen}, which is better for it, when {until}",
    )


def why_later(case: Case, placement: Placement) -> Sentence:
    """Why what was chosen is not there yet."""
    jobs = case.round.snapshot.jobs
    leaving = [jobs[one] for one in placement.waits_for if one in jobs]
    leavers = named(leaving, case.job.spec.project) or "other jobs"
    have = "has" if len(leaving) == 1 else "have"
    return Sentence(Reason.WAITING_FOR_CAPACITY, f"gets {case.chosen} as soon as {leavers} {have} left them")


def why_less(case: Case, slots: int) -> Sentence:
    """Why a running job goes on with a part of what it holds."""
    forced = _forced_out(case)
    why = forced.message if forced is not None else "others are still on its next place"
    return Sentence(
        forced.reason if forced is not None else Reason.WAITING_FOR_CAPACITY,
        f"goes on with {slots_of(slots, case.holding.kind)}, and to {case.chosen} as soon as they are free: {why}",
    )


def why_vacate(case: Case) -> Sentence:
    """Why a running job loses everything."""
    forced = _forced_out(case)
    if forced is not None:
        return Sentence(forced.reason, f"{forced.message} and no other node has room; waits")
    if is_left_over(case.job, case.holding.size):
        return Sentence(
            Reason.WAITING_FOR_CAPACITY,
            f"was left with {case.present}, which its job file does not allow, and no size that it allows has room; "
            "waits",
        )
    unpaid = _unpaid(case)
    if unpaid is not None:
        return unpaid
    if case.given_up_for is not None:
        return Sentence(
            Reason.PREEMPTED, f"its {why_given_up(case.given_up_for)}; goes on when there is room"
        )
    return Sentence(
        Reason.PREEMPTED, "its slots go to jobs that gain more from them; goes on when there is room"
    )


def _unpaid(case: Case) -> Sentence | None:
    """The budget that does not even allow what the job has, were it alone; None where each of them does."""
    now = case.round.given.current[case.row]
    if now < 0:
        return None
    usd_per_h = float(case.round.columns.configurations.usd_per_h[now])
    for cap in case.round.snapshot.caps:
        if cap.project in {None, case.job.spec.project} and usd_per_h > cap.usd_per_h:
            spent = "is spent" if cap.usd_per_h <= 0 else f"allows ${cap.usd_per_h:,.2f} an hour"
            return Sentence(
                Reason.BUDGET,
                f"budget {cap.name} {spent}, and its slots cost ${usd_per_h:,.2f}; goes on when there is money",
            )
    return None


def _forced_out(case: Case) -> Sentence | None:
    """Why the job cannot keep all of its slots; None when it could."""
    snapshot, holding = case.round.snapshot, case.holding
    leaving = [key for key in snapshot.slots_held_by(case.job.id) if key not in holding.keepable]
    if not leaving:
        return None
    names = ", ".join(sorted({snapshot.nodes[key.node_id].name for key in leaving}))
    bad = [
        f"slot {key.slot} of {node.name} is in quarantine: {node.quarantined[key.slot]}"
        for key, node in ((key, snapshot.nodes[key.node_id]) for key in leaving)
        if key.slot in node.quarantined
    ]
    if bad:
        more = f" (and {len(bad) - 1} more slots)" if len(bad) > 1 else ""
        return Sentence(Reason.BAD_DEVICE, bad[0] + more)
    if any(snapshot.kind_of(key) != holding.kind for key in leaving):
        return Sentence(Reason.BAD_DEVICE, f"{names} no longer has every slot that it had")
    reclaimed = [snapshot.nodes[key.node_id].reclaim_at for key in leaving]
    taken = sorted(at for at in reclaimed if at is not None)
    if taken:
        at = f"{taken[0]:%H:%M:%S} UTC"
        return Sentence(Reason.SPOT_RECLAIMED, f"{names} is taken away by its provider at {at}")
    return Sentence(Reason.NODE_DRAINED, f"{names} is draining")


def _barred(case: Case) -> Sentence | None:
    """What of money or time forbids what the job has, and allows what it gets; None: nothing."""
    round_, job = case.round, case.job
    now = int(round_.given.current[case.row])
    if now < 0 or round_.bars[case.row, case.column] != Bar.NONE:
        return None
    deadline = job.spec.goal.deadline
    if round_.bars[case.row, now] == Bar.OVER_BUDGET:
        cost = round_.prospects.cost_usd(round_.columns.configurations.usd_per_h)[case.row]
        left = round_.snapshot.limits[job.id].left_usd
        return Sentence(
            Reason.BUDGET,
            f"costs ${cost[case.column]:,.2f} until its end instead of ${cost[now]:,.2f}, and may cost ${left:,.2f}",
        )
    if round_.bars[case.row, now] == Bar.DEADLINE and deadline is not None:
        return Sentence(
            Reason.DEADLINE,
            f"until its deadline ({deadline:%Y-%m-%d %H:%M} UTC) there is no time to lose a machine",
        )
    return None


def _is_cheaper(then: SizeOption, now: SizeOption) -> bool:
    return then.usd_per_h is not None and now.usd_per_h is not None and then.usd_per_h < now.usd_per_h


def _gain(now: SizeOption, then: SizeOption) -> str:
    if now.goodput_samples_per_s is None or then.goodput_samples_per_s is None:
        return f"{then.speedup / now.speedup:.2f} times the speed is expected"
    source = "measured" if then.measured else "expected"
    return f"{now.goodput_samples_per_s:,.0f} -> {then.goodput_samples_per_s:,.0f} samples/s {source}"


def _weighed(utility: float) -> float | None:
    return utility if np.isfinite(utility) else None
