"""Synthetic clusters full of jobs for timing: models, held slots and constraint rows, determined by a seed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from headway.contract.values.topology import LABEL_LEVELS, LEVELS
from service.domain.allocation.knapsack.problem import NOTHING, Row
from service.domain.allocation.placement.placement import PlacementRequest, PoolSlots, place_all
from service.domain.jobs.job import Allocation
from service.domain.perf.tables import JobModels
from service.domain.perf.throughput import KNOTS, ThroughputModel
from service.domain.policies.framework.policy import Configurations, RoundInput
from service.domain.shared.arrays import BoolArray, FloatArray, IntArray

NODE_SLOTS = 8
WHOLE_NODES = (2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
NODES_TOGETHER = {"nvlink": 2, "rack": 8, "zone": 64}
"""Nodes of each NVLink domain, rack and zone in a cluster with topology levels."""
HELD_SHARE = 0.9
"""Share of the slots that running jobs hold before the decision."""


@dataclass(frozen=True, slots=True)
class Instance:
    """Input of a decision. `given` has no goodput yet; `held` are the slots that each job holds."""

    given: RoundInput
    models: JobModels
    pools: dict[str, PoolSlots]
    held: list[Allocation]

    def round_input(self, goodput: FloatArray) -> RoundInput:
        """Return the input of the policy with this goodput."""
        return dataclasses.replace(self.given, goodput=goodput, allowed=self.given.allowed & (goodput > 0.0))

    def placement_requests(self, chosen: IntArray) -> list[PlacementRequest]:
        """Return the placement requests for these choices."""
        return _placement_requests(self.given.configurations, chosen, self.given.current, self.held)


def make_instance(
    jobs: int, slots: int, kinds: int, *, seed: int, quotas: int, dollars: bool, levels: bool = False
) -> Instance:
    """Return jobs on a cluster whose nodes are divided among the kinds, and have labels of three `levels` if set."""
    rng = np.random.default_rng(seed)
    nodes = np.full(kinds, slots // NODE_SLOTS // kinds)
    nodes[: slots // NODE_SLOTS - nodes.sum()] += 1
    speed = np.asarray(1.6 ** np.arange(kinds), np.float64)
    usd_per_slot_h = np.asarray(1.5 ** np.arange(kinds), np.float64)
    configurations = _configurations(nodes, usd_per_slot_h)
    models = _models(rng, jobs, speed)
    if levels:
        # A generator of its own leaves all other draws as they are without levels.
        drawn = np.random.default_rng(seed).gamma(2.0, 0.1, (jobs, kinds, len(LABEL_LEVELS)))
        further = [(0, 0), (0, 0), (0, len(LEVELS) - len(LABEL_LEVELS))]
        models = dataclasses.replace(models, reach=np.exp(np.pad(np.cumsum(drawn, axis=-1), further, "edge")))
        within = np.array([NODES_TOGETHER[level] * NODE_SLOTS for level in LABEL_LEVELS])
        configurations = dataclasses.replace(
            configurations, crosses=np.searchsorted(within, configurations.slots)
        )
    largest = 2 ** np.minimum(rng.geometric(0.25, jobs), 10) - 1
    allowed = (configurations.slots <= largest[:, None]) | (configurations.slots == 1)
    current = _running(rng, configurations, allowed, nodes * NODE_SLOTS)
    free: list[Allocation] = [
        {f"{kind}-{node:05}": tuple(range(NODE_SLOTS)) for node in range(count)}
        for kind, count in zip(configurations.kinds, nodes.tolist(), strict=True)
    ]
    empty: list[Allocation] = [{}] * jobs
    placed = place_all(
        _placement_requests(configurations, current, np.full(jobs, NOTHING), empty),
        {
            kind: PoolSlots(free=own, node_slots=NODE_SLOTS, paths=_paths(own, levels=levels))
            for kind, own in zip(configurations.kinds, free, strict=True)
        },
    )
    held = [placed[name].allocation if (name := _name(job)) in placed else {} for job in range(jobs)]
    rows = _rows(
        rng, configurations, nodes * NODE_SLOTS, usd_per_slot_h, jobs, quotas=quotas, dollars=dollars
    )
    return Instance(
        given=_round_input(rng, configurations, rows, allowed, current),
        models=models,
        pools=_pools(configurations.kinds, free, held, levels=levels),
        held=held,
    )


def _configurations(nodes: IntArray, usd_per_slot_h: FloatArray) -> Configurations:
    within = 2 ** np.arange(NODE_SLOTS.bit_length())
    whole = np.array(WHOLE_NODES)
    sizes = [np.concatenate([within, whole[whole <= count] * NODE_SLOTS]) for count in nodes.tolist()]
    kind = np.repeat(np.arange(len(nodes)), [len(own) for own in sizes])
    slots = np.concatenate(sizes)
    return Configurations(
        kinds=tuple(f"kind{index}" for index in range(len(nodes))),
        kind=kind,
        slots=slots,
        nodes=-(-slots // NODE_SLOTS),
        usd_per_h=slots * usd_per_slot_h[kind],
    )


def _models(rng: np.random.Generator, jobs: int, speed: FloatArray) -> JobModels:
    """Return models of Pollux's form. The ratio of synchronisation to compute varies by a factor of ten either way."""
    shape = (jobs, len(speed))
    reference = np.asarray(2.0 ** rng.integers(5, 9, jobs), np.float64)
    compute_s = rng.lognormal(-1.5, 0.7, (jobs, 1)) / speed * rng.lognormal(0.0, 0.15, shape)
    sync_s = rng.lognormal(-3.5, 1.0, (jobs, 1)) * np.ones(shape)
    local = reference[:, None] * np.ones(shape)
    throughput = ThroughputModel(
        alpha_c=0.3 * compute_s,
        beta_c=0.7 * compute_s / local,
        alpha_r=0.3 * sync_s,
        beta_r=0.05 * sync_s,
        alpha_n=sync_s,
        beta_n=0.1 * sync_s,
        beta_p=0.05 * sync_s,
        gamma=rng.uniform(1.0, 5.0, shape),
        bend=np.zeros((*shape, KNOTS)),
        batch_low=local,
        batch_high=local,
        spread=np.full(shape, 0.1),
        slots_tried=np.full(shape, 8.0),
        nodes_tried=np.full(shape, 1.0),
    )
    return JobModels(
        throughput=throughput,
        noise_scale=reference * rng.lognormal(2.0, 1.2, jobs),
        reference_batch=reference,
        global_batch=reference,
        max_global=reference * 64.0,
        max_local=2.0 * local,
        adapts=np.ones(jobs, bool),
    )


def _running(
    rng: np.random.Generator, configurations: Configurations, allowed: BoolArray, capacity: IntArray
) -> IntArray:
    """Return the configuration that each job holds: one for about half of the jobs, as far as the slots suffice."""
    drawn: IntArray = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1)
    drawn[rng.random(len(drawn)) < 0.4] = NOTHING
    for kind, most in enumerate(capacity.tolist()):
        own = np.flatnonzero((drawn != NOTHING) & (configurations.kind[drawn] == kind))
        drawn[own[np.cumsum(configurations.slots[drawn[own]]) > HELD_SHARE * most]] = NOTHING
    return drawn


def _rows(
    rng: np.random.Generator,
    configurations: Configurations,
    capacity: IntArray,
    usd_per_slot_h: FloatArray,
    jobs: int,
    *,
    quotas: int,
    dollars: bool,
) -> tuple[Row, ...]:
    rows = [
        Row(
            name=name,
            capacity=float(capacity[kind]),
            demand=np.where(configurations.kind == kind, configurations.slots, 0.0),
        )
        for kind, name in enumerate(configurations.kinds)
    ]
    project = rng.integers(0, max(quotas, 1), jobs)
    share = capacity.sum() / max(quotas, 1)
    rows += [
        Row(
            name=f"project {index}",
            capacity=float(np.ceil(share * rng.uniform(0.5, 2.0))),
            demand=configurations.slots.astype(float),
            jobs=project == index,
        )
        for index in range(quotas)
    ]
    if dollars:
        half = float((capacity * usd_per_slot_h).sum() / 2)
        rows.append(Row(name="dollars per hour", capacity=half, demand=configurations.usd_per_h))
    return tuple(rows)


def _round_input(
    rng: np.random.Generator,
    configurations: Configurations,
    rows: tuple[Row, ...],
    allowed: BoolArray,
    current: IntArray,
) -> RoundInput:
    jobs = len(current)
    runs = current != NOTHING
    age_s = rng.exponential(3 * 3600.0, jobs)
    served_s = np.zeros((jobs, len(configurations.kinds)))
    served_s[runs, configurations.kind[current[runs]]] = age_s[runs] / 2
    return RoundInput(
        configurations=configurations,
        rows=rows,
        goodput=np.zeros(allowed.shape),
        allowed=allowed,
        current=current,
        weight=np.where(rng.random(jobs) < 0.1, 2.0, 1.0),
        age_s=age_s,
        waited_s=np.where(runs, 0.0, age_s),
        served_s=served_s,
        served_slot_s=served_s.sum(axis=1) * np.where(runs, configurations.slots[current], 0),
        changes=rng.poisson(2.0, jobs),
        change_s=rng.uniform(1.0, 60.0, jobs),
        remaining=np.where(rng.random(jobs) < 0.7, rng.lognormal(13.0, 1.5, jobs), np.nan),
        requested_slots=np.ones(jobs, np.int64),
        job_class=rng.integers(0, 50, jobs),
    )


def _paths(nodes: Allocation, *, levels: bool) -> dict[str, tuple[str, ...]]:
    """Return the topology labels of the nodes of a kind, smallest level first; none without levels."""
    if not levels:
        return {}
    return {
        node: tuple(str(index // NODES_TOGETHER[level]) for level in LABEL_LEVELS)
        for index, node in enumerate(nodes)
    }


def _pools(
    kinds: tuple[str, ...], free: list[Allocation], held: list[Allocation], *, levels: bool
) -> dict[str, PoolSlots]:
    """Return the slots that no job holds, by kind."""
    taken: dict[str, set[int]] = {}
    for allocation in held:
        for node, slots in allocation.items():
            taken.setdefault(node, set()).update(slots)
    return {
        kind: PoolSlots(
            free={
                node: tuple(slot for slot in slots if slot not in taken.get(node, ()))
                for node, slots in own.items()
            },
            node_slots=NODE_SLOTS,
            paths=_paths(own, levels=levels),
        )
        for kind, own in zip(kinds, free, strict=True)
    }


def _name(job: int) -> str:
    return f"job-{job:06}"


def _placement_requests(
    configurations: Configurations, chosen: IntArray, current: IntArray, held: list[Allocation]
) -> list[PlacementRequest]:
    requests = []
    for job, (column, before) in enumerate(zip(chosen.tolist(), current.tolist(), strict=True)):
        size = 0 if column == NOTHING else int(configurations.slots[column])
        requests.append(
            PlacementRequest(
                job_id=_name(job),
                kind="" if column == NOTHING else configurations.kinds[configurations.kind[column]],
                slots=size,
                unit=NODE_SLOTS,
                held_kind=configurations.kinds[configurations.kind[before]] if held[job] else "",
                held=held[job],
            )
        )
    return requests
