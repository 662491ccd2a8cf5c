"""Reason of every decision, as a constant for programs and a message for users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from headway.contract.spec import Resize
from headway.contract.values.depths import mean_depth
from headway.contract.values.devices import slots_by_kind
from headway.contract.values.listing import all_of
from headway.contract.values.markets import pool_name
from headway.contract.values.topology import SLOW_LINK, level_name
from headway.contract.views.jobs import Reason, SizeOption
from service.domain.allocation.configurations.eligibility import Holding, is_left_over
from service.domain.allocation.decision.crossing_texts import slow_links_of
from service.domain.allocation.decision.deadline_texts import room_for_deadlines
from service.domain.allocation.decision.growth_texts import gain_text, tried_text
from service.domain.allocation.decision.heir_texts import heirs_text
from service.domain.allocation.decision.note_texts import note_text
from service.domain.allocation.decision.quota_texts import why_above_quota, why_given_up
from service.domain.allocation.decision.reason_texts import NAMED, ReasonText, named
from service.domain.allocation.decision.speedups import one_slot_of
from service.domain.allocation.inputs.notes import Note
from service.domain.allocation.inputs.round import Round
from service.domain.allocation.knapsack.problem import NOTHING
from service.domain.allocation.limits.spending import SpendingBar
from service.domain.allocation.limits.tenancy import GuaranteeClaim
from service.domain.allocation.placement.placed_speed import level_of
from service.domain.allocation.placement.placement import Placement, describe_move
from service.domain.cluster.pools import Pool, anchor_in, device_kind_of, slots_in, slots_of
from service.domain.jobs.job import Allocation, Job
from service.domain.jobs.resumption import resumes
from service.domain.policies.framework.policy import Choices


@dataclass(frozen=True, slots=True)
class Case:
    """A job of a round: its row, and the column that it gets, -1 for none.

    `options` are the configurations that the round considered for the job. `given_up_for` is the claim whose
    guarantee leaves the job fewer slots than the policy would give it. `gap` is the optimality gap of the
    round.
    """

    round: Round
    row: int
    column: int
    options: tuple[SizeOption, ...]
    given_up_for: GuaranteeClaim | None = None
    gap: float = 0.0

    @property
    def job(self) -> Job:
        """Job that this case is about."""
        return self.round.jobs[self.row]

    @property
    def holding(self) -> Holding:
        """Slots that the job holds."""
        return self.round.scope.holdings[self.job.id]

    @property
    def chosen(self) -> str:
        """Text for users on what the job gets."""
        return self.round.columns.text_of(self.column)

    @property
    def present(self) -> str:
        """Text for users on what the job holds."""
        held = self.held
        # A slot that its node no longer reports lies in no pool.
        if not held or sum(held.values()) < self.holding.size:
            return slots_of(self.holding.size, self.holding.kind)
        return slots_in(held)

    @property
    def held(self) -> dict[Pool, int]:
        """Number of slots that the job holds in each pool."""
        snapshot = self.round.snapshot
        pools = map(snapshot.pool_of, snapshot.slots_held_by(self.job.id))
        return Counter(pool for pool in pools if pool is not None)

    @property
    def search(self) -> str:
        """Reason that its search wants its new column; empty if it does not, or without a search."""
        step = self.round.search.steps.get(self.job.id)
        if step is None or step.target != self.column or self.column < 0:
            return ""
        return f"search: {step.reason}"

    def option(self, *, of_now: bool) -> SizeOption | None:
        """Return the option of the job's present size, or of its new one; None if there is none."""
        parts = self.held if of_now else self.round.columns.parts_of(self.column)
        slots = self.holding.size if of_now else sum(parts.values())
        if not parts:
            return None
        pool, anchor = pool_name(device_kind_of(parts), max(parts).market), anchor_in(parts)
        return next(
            (one for one in self.options if (one.pool, one.slots, one.anchor) == (pool, slots, anchor)),
            None,
        )


def all_options(round_: Round, choices: Choices) -> list[tuple[SizeOption, ...]]:
    """Return `options_of` every job (J,). Identical waiting jobs, as in a long queue, share theirs."""
    shared: dict[tuple[bytes, ...], tuple[SizeOption, ...]] = {}
    facts = _facts(round_)
    estimates, codes = round_.estimates, round_.notes.codes
    found = []
    for row, job in enumerate(round_.jobs):
        if round_.scope.holdings[job.id].size:
            found.append(options_of(round_, row, choices, facts))
            continue
        parts = (
            codes[row],
            estimates.table.goodput[row],
            choices.utility[row],
            estimates.measured.tried[row],
            estimates.known[row],
        )
        key = (*(part.tobytes() for part in parts), repr(job.spec.elastic.min_depth).encode())
        if key not in shared:
            shared[key] = options_of(round_, row, choices, facts)
        found.append(shared[key])
    return found


def _facts(round_: Round) -> list[dict[str, Any]]:
    """Return the facts by column that the options of all jobs share."""
    columns, configurations = round_.columns, round_.columns.configurations
    crosses = configurations.crosses
    return [
        {
            "device_kind": columns.by_kind.kind_name(column),
            "market": columns.pools[kind].market,
            "anchor": anchor_in(columns.parts_of(column)),
            "usd_per_h": float(configurations.usd_per_h[column]),
            "slots": int(configurations.slots[column]),
            "nodes": int(configurations.nodes[column]),
            "crosses": "" if crosses is None else level_name(int(crosses[column])),
        }
        for column, kind in enumerate(configurations.kind.tolist())
    ]


def options_of(
    round_: Round, row: int, choices: Choices, facts: Sequence[dict[str, Any]]
) -> tuple[SizeOption, ...]:
    """Return every configuration that the round considered for a job, eligible or not."""
    codes, estimates = round_.notes.codes, round_.estimates
    goodput, slots = estimates.table.goodput, round_.columns.configurations.slots
    shown = np.flatnonzero((codes[row] != Note.NOT_ALLOWED) & (codes[row] != Note.TOO_FAR))
    if not len(shown):
        return ()
    one_slot = one_slot_of(round_, row, shown)
    columns = (codes, goodput, choices.utility, estimates.measured.tried)
    min_depth = round_.jobs[row].spec.elastic.min_depth
    of_shown = zip(shown.tolist(), *(one[row, shown].tolist() for one in columns), strict=True)
    return tuple(
        SizeOption(
            **facts[column],
            goodput_samples_per_s=per_s if estimates.known[row] else None,
            speedup=per_s / one_slot.goodput,
            one_slot_measured=one_slot.measured,
            measured=measured,
            utility=worth if isfinite(worth) else None,
            note=note_text(Note(note), round_.jobs[row], round_.snapshot),
            depth=None if min_depth is None else mean_depth(min_depth, int(slots[column])),
        )
        for column, note, per_s, worth, measured in of_shown
    )


def why_start(case: Case, allocation: Allocation) -> ReasonText:
    """Return the reason that a waiting job starts at this size."""
    nodes = case.round.snapshot.nodes
    text = f"{case.chosen} on {', '.join(nodes[node].name for node in allocation)}{_stopped_text(case)}"
    slots = int(case.round.columns.configurations.slots[case.column])
    may_grow = case.job.spec.elastic.resize is not Resize.NEVER and max(case.job.sizes) > slots
    if may_grow and not any(option.measured for option in case.options):
        by_class = "size from measurements of jobs of its class"
        alone = "starts small, and grows once its speed is measured"
        if case.job.spec.elastic.resize is Resize.RESTART and resumes(case.job) is not True:
            alone += " and it has shown that it resumes"
        text += f"; {case.search or (by_class if case.round.estimates.learned.related[case.row] else alone)}"
    elif case.search:
        text += f"; {case.search}"
    return ReasonText(Reason.ALLOCATED, text)


def _stopped_text(case: Case) -> str:
    """Return the jobs that were stopped for one that starts now; empty if there are none."""
    promise, jobs = case.job.progress.promise, case.round.snapshot.jobs
    stopped = [jobs[one] for one in promise.stopped if one in jobs] if promise is not None else []
    if not stopped:
        return ""
    priorities = sorted({job.spec.priority for job in stopped})
    of = f"priority {all_of([str(one) for one in priorities])} against {case.job.spec.priority}"
    was = "was" if len(stopped) == 1 else "were"
    return f", for which {named(stopped, case.job.spec.project)} ({of}) {was} stopped"


def why_keep(case: Case) -> ReasonText:
    """Return the reason that a running job stays as it is."""
    text = f"{case.present}: optimal under the model, gap {case.gap:.2%}"
    if case.job.pinned_size == case.holding.size:
        text = f"fixed at {case.present} by request"
    elif case.search:
        return ReasonText(Reason.PROGRESSING, f"{case.present}: {case.search}")
    refused = [f"{one.slots} slots: {one.note}" for one in case.options if one.note not in {"", "current"}]
    return ReasonText(Reason.PROGRESSING, "; ".join([text, *refused[:NAMED]]))


def why_change(case: Case, current: Allocation, placement: Placement) -> ReasonText:
    """Return the reason that a running job gets another size or other slots."""
    forced = _forced_out(case)
    same = case.chosen == case.present
    step = f"from {case.present} to {case.chosen}"
    if forced is not None:
        change = f"moves its {case.chosen}" if same else step
        return ReasonText(forced.reason, f"{change}: {forced.message}")
    if same:
        snapshot = case.round.snapshot
        successor = snapshot.jobs.get(placement.makes_room_for)
        names = {node.id: node.name for node in snapshot.nodes.values()}
        heir = named([successor], case.job.spec.project) if successor else ""
        before, after = (level_of(case.round, one) for one in (current, placement.allocation))
        aim = "to lie closer together" if after < before else ""
        if aim and level_name(before) == SLOW_LINK:
            aim = f"to leave a slow link ({slow_links_of(case.round, current)})"
        text = describe_move(current, placement.allocation, heir=heir, node_names=names, aim=aim)
        return ReasonText(Reason.BETTER_ALLOCATION, text)
    barred = _barred(case)
    if barred is not None:
        return ReasonText(barred.reason, f"{step}: {barred.message}")
    if case.round.given.current[case.row] >= 0 and _too_late(case):
        return ReasonText(Reason.DEADLINE, f"{step}, for its deadline")
    if int(case.round.columns.configurations.slots[case.column]) == case.job.pinned_size:
        return ReasonText(Reason.USER_REQUEST, f"{step}, as requested")
    if is_left_over(case.job, case.holding.size):
        return ReasonText(Reason.BETTER_ALLOCATION, f"{step}: a size that its job file allows")
    return ReasonText(Reason.BETTER_ALLOCATION, f"{step}: {case.search or _why_better(case)}")


def _why_better(case: Case) -> str:
    """Return the reason that another configuration is better than the job's present one."""
    now, then = case.option(of_now=True), case.option(of_now=False)
    if now is not None and then is not None and then.speedup > now.speedup > 0:
        return gain_text(now, then, case.job.progress.unit)
    if now is not None and then is not None and now.slots == then.slots and then.usd_per_h < now.usd_per_h:
        return f"the same number of slots for ${then.usd_per_h:,.2f} instead of ${now.usd_per_h:,.2f} an hour"
    if case.given_up_for is not None:
        return why_given_up(case.given_up_for)
    if now is not None and then is not None and then.slots > now.slots and not then.measured:
        hope = float(case.round.notes.hope[case.row, case.column])
        return tried_text(now, then, hope, case.job.progress.unit)
    above = why_above_quota(case.round.snapshot, case.job.spec.project)
    room = room_for_deadlines(case.round, case.row) or _room_for_minimums(case)
    if above or room or len(case.round.jobs) > 1:
        return above or room or "makes room for jobs that gain more from the slots"
    return "the policy values it more"


def _room_for_minimums(case: Case) -> str:
    """Return text on waiting jobs that now get their minimum from slots of others; empty without any."""
    round_ = case.round
    rows = np.flatnonzero((round_.given.current == NOTHING) & (round_.contest.seats.columns != NOTHING))
    if not len(rows):
        return ""
    waiting = named([round_.jobs[row] for row in rows.tolist()], case.job.spec.project)
    return f"makes room for the minimum of {waiting}"


def why_back_off(case: Case) -> ReasonText:
    """Return the reason that a running job keeps its slots although it should change them: it backs off."""
    job = case.job
    again = f" from {job.grow_after:%H:%M:%S} UTC on" if job.grow_after else ""
    times = "once" if job.growth_failures == 1 else f"{job.growth_failures} times in a row"
    return ReasonText(
        Reason.START_FAILED,
        f"{case.present} for now: new ranks did not come up {times}; retried{again}; see the job's events",
    )


def why_put_off(case: Case, until: str) -> ReasonText:
    """Return the reason that a running job does not have its better configuration yet."""
    return ReasonText(
        Reason.PROGRESSING,
        f"{case.present} for now; changes to {case.chosen} once {until}",
    )


def why_later(case: Case, placement: Placement) -> ReasonText:
    """Return the reason that the chosen slots are not available yet."""
    jobs = case.round.snapshot.jobs
    leaving = [jobs[one] for one in placement.waits_for if one in jobs]
    leavers = named(leaving, case.job.spec.project) or "other jobs"
    have = "has" if len(leaving) == 1 else "have"
    return ReasonText(
        Reason.WAITING_FOR_CAPACITY, f"gets {case.chosen} as soon as {leavers} {have} released them"
    )


def why_less(case: Case, slots: int) -> ReasonText:
    """Return the reason that a running job continues on `slots` of its slots until the chosen ones are free."""
    forced = _forced_out(case)
    why = forced.message if forced is not None else "its next slots are still in use"
    return ReasonText(
        forced.reason if forced is not None else Reason.WAITING_FOR_CAPACITY,
        f"continues on {slots_of(slots, case.holding.kind)}, and on {case.chosen} as soon as they are free: {why}",
    )


def why_vacate(case: Case, heirs: Sequence[int] = ()) -> ReasonText:
    """Return the reason that a running job loses all of its slots. `heirs` are the rows of the jobs that get them."""
    forced = _forced_out(case)
    if forced is not None:
        return ReasonText(
            forced.reason, f"{forced.message}, and no other node has enough free slots; the job waits"
        )
    if is_left_over(case.job, case.holding.size):
        return ReasonText(
            Reason.WAITING_FOR_CAPACITY,
            f"a loss left it with {case.present}, which its job file does not allow, and no size that it allows fits; "
            "the job waits",
        )
    unpaid = _unpaid(case)
    if unpaid is not None:
        return unpaid
    if case.given_up_for is not None:
        return ReasonText(
            Reason.PREEMPTED, f"its {why_given_up(case.given_up_for)}; it starts again when slots are free"
        )
    to = heirs_text(case.round, case.row, heirs)
    return ReasonText(Reason.PREEMPTED, f"its slots go to {to}; it starts again when slots are free")


def _unpaid(case: Case) -> ReasonText | None:
    """Return the budget that is too small even for the job's present slots alone; None if there is none."""
    now = case.round.given.current[case.row]
    if now < 0:
        return None
    usd_per_h = float(case.round.columns.configurations.usd_per_h[now])
    for cap in case.round.snapshot.caps:
        if cap.project in {None, case.job.spec.project} and usd_per_h > cap.usd_per_h:
            spent = "is spent" if cap.usd_per_h <= 0 else f"allows ${cap.usd_per_h:,.2f} an hour"
            return ReasonText(
                Reason.BUDGET,
                f"budget {cap.name} {spent}, and its slots cost ${usd_per_h:,.2f}; it starts again when the budget has money left",
            )
    return None


def _forced_out(case: Case) -> ReasonText | None:
    """Return the reason that the job cannot keep all of its slots; None if it can."""
    snapshot, holding = case.round.snapshot, case.holding
    leaving = [key for key in snapshot.slots_held_by(case.job.id) if key not in holding.keepable]
    if not leaving:
        return None
    names = ", ".join(sorted({snapshot.nodes[key.node_id].name for key in leaving}))
    bad = [
        f"slot {key.slot} of {node.name} is {'slow' if key in snapshot.stragglers else 'in quarantine'}: "
        f"{node.quarantined[key.slot]}"
        for key, node in ((key, snapshot.nodes[key.node_id]) for key in leaving)
        if key.slot in node.quarantined
    ]
    if bad:
        more = f" (and {len(bad) - 1} more slots)" if len(bad) > 1 else ""
        return ReasonText(Reason.BAD_DEVICE, bad[0] + more)
    kinds = slots_by_kind(holding.kind or "", holding.size)
    if any(snapshot.kind_of(key) not in kinds for key in leaving):
        return ReasonText(Reason.BAD_DEVICE, f"{names} no longer has all of its slots")
    reclaimed = [snapshot.nodes[key.node_id].reclaim_at for key in leaving]
    reclaim_at = min((at for at in reclaimed if at is not None), default=None)
    if reclaim_at is not None:
        text = f"{names} is reclaimed by its provider at {reclaim_at:%H:%M:%S} UTC"
        return ReasonText(Reason.SPOT_RECLAIMED, text)
    return ReasonText(Reason.NODE_DRAINED, f"{names} is draining")


def _too_late(case: Case) -> bool:
    """Return True if the job would miss its deadline on its present slots."""
    return bool(case.round.contest.too_late[case.row, case.round.given.current[case.row]])


def _barred(case: Case) -> ReasonText | None:
    """Return the limit of money, time or market that excludes the job's present slots but not its new ones; None
    without one.
    """
    round_, job = case.round, case.job
    now = int(round_.given.current[case.row])
    if now < 0 or round_.notes.bars[case.row, case.column] != SpendingBar.NONE:
        return None
    deadline = job.spec.goal.deadline
    if round_.notes.bars[case.row, now] == SpendingBar.OVER_BUDGET:
        cost = round_.estimates.prospects.cost_usd(round_.columns.configurations.usd_per_h)[case.row]
        left = round_.snapshot.limits[job.id].left_usd
        return ReasonText(
            Reason.BUDGET,
            f"costs ${cost[case.column]:,.2f} until its end instead of ${cost[now]:,.2f}; it may still spend ${left:,.2f}",
        )
    if round_.notes.bars[case.row, now] == SpendingBar.DEADLINE and deadline is not None:
        return ReasonText(
            Reason.DEADLINE,
            f"no time is left before its deadline ({deadline:%Y-%m-%d %H:%M} UTC) to lose a spot machine",
        )
    if round_.notes.bars[case.row, now] == SpendingBar.MARKET:
        return ReasonText(Reason.BETTER_ALLOCATION, round_.snapshot.market_limits[job.id].reason)
    return None
