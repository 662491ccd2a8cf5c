"""The numbers of ranks after a change, and the ranks that leave, compared with all others by what moves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.meshes import MeshShape
from service.domain.jobs.shard_order import new_ranks, ranks_to_keep

meshes = st.builds(
    MeshShape, pp=st.integers(1, 2), replicate=st.integers(1, 2), fsdp=st.integers(1, 3), tp=st.integers(1, 2)
)


def kept_share(stay: Sequence[int], ranks: Sequence[int], before: MeshShape, after: MeshShape) -> float:
    """The share of a model that these old ranks keep at these new ranks, of what the new ranks hold."""
    total = 0.0
    for old, new in zip(stay, ranks, strict=True):
        if before.position(old) != after.position(new):
            continue
        mine, its = before.data_rank(old) % before.fsdp, after.data_rank(new) % after.fsdp
        low = max(mine / before.fsdp, its / after.fsdp)
        total += max(0.0, min((mine + 1) / before.fsdp, (its + 1) / after.fsdp) - low)
    return total


@given(meshes, meshes)
def test_new_ranks_are_different_ranks_of_the_mesh(before: MeshShape, after: MeshShape) -> None:
    stay = list(range(min(before.size, after.size)))
    found = new_ranks(stay, before, after)
    assert len(set(found)) == len(stay)
    assert set(found) <= set(range(after.size))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (MeshShape(fsdp=2), MeshShape(fsdp=3)),
        (MeshShape(fsdp=2), MeshShape(replicate=2, fsdp=2)),
        (MeshShape(replicate=2, fsdp=2), MeshShape(fsdp=5)),
        (MeshShape(fsdp=2, tp=2), MeshShape(fsdp=3, tp=2)),
        (MeshShape(pp=2), MeshShape(pp=2, fsdp=2)),
        (MeshShape(pp=2, fsdp=2), MeshShape(pp=2, fsdp=3)),
        (MeshShape(pp=2, tp=2), MeshShape(pp=2, replicate=2, tp=2)),
    ],
)
def test_growth_moves_the_least(before: MeshShape, after: MeshShape) -> None:
    stay = list(range(before.size))
    best = max(kept_share(stay, one, before, after) for one in permutations(range(after.size), before.size))
    assert kept_share(stay, new_ranks(stay, before, after), before, after) == pytest.approx(best)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (MeshShape(fsdp=4), MeshShape(fsdp=2)),
        (MeshShape(fsdp=4), MeshShape(fsdp=3)),
        (MeshShape(fsdp=6), MeshShape(fsdp=4)),
        (MeshShape(replicate=2, fsdp=2), MeshShape(fsdp=2)),
        (MeshShape(replicate=2, fsdp=3), MeshShape(fsdp=3)),
        (MeshShape(replicate=2, tp=2), MeshShape(tp=2)),
        (MeshShape(fsdp=4, tp=2), MeshShape(fsdp=2, tp=2)),
        (MeshShape(pp=2, fsdp=4), MeshShape(pp=2, fsdp=2)),
        (MeshShape(pp=2, replicate=2, fsdp=2), MeshShape(pp=2, fsdp=2)),
    ],
)
def test_those_leave_whose_parts_move_least(before: MeshShape, after: MeshShape) -> None:
    keep = ranks_to_keep(dict.fromkeys(range(before.size), "n"), {"n": after.size}, before, after)
    found = kept_share(keep, new_ranks(keep, before, after), before, after)
    best = max(
        kept_share(some, new_ranks(some, before, after), before, after)
        for some in combinations(range(before.size), after.size)
    )
    assert found == pytest.approx(best)


def test_a_whole_replica_stays() -> None:
    before, after = MeshShape(replicate=2, fsdp=2), MeshShape(fsdp=2)
    keep = ranks_to_keep({0: "a", 1: "b", 2: "a", 3: "b"}, {"a": 1, "b": 1}, before, after)
    assert keep == [0, 1]
    assert kept_share(keep, new_ranks(keep, before, after), before, after) == 1.0


def test_each_node_keeps_as_many_ranks_as_it_has_room() -> None:
    nodes = {rank: "a" if rank < 4 else "b" for rank in range(8)}
    keep = ranks_to_keep(nodes, {"a": 1, "b": 3}, MeshShape(fsdp=8), MeshShape(fsdp=4))
    assert [nodes[rank] for rank in keep] == ["a", "b", "b", "b"]
