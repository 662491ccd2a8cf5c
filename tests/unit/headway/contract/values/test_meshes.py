"""The mesh of a sharded model: its text, its ranks, and its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.values.meshes import MeshShape, mesh_of

meshes = st.builds(
    MeshShape, pp=st.integers(1, 4), replicate=st.integers(1, 4), fsdp=st.integers(1, 4), tp=st.integers(1, 4)
)


@given(meshes)
def test_a_mesh_survives_its_text(mesh: MeshShape) -> None:
    assert mesh_of(str(mesh)) == mesh


@given(meshes)
def test_a_rank_has_one_position_in_one_pipeline(mesh: MeshShape) -> None:
    ranks = range(mesh.size)
    assert [mesh.rank_at(mesh.data_rank(rank), mesh.position(rank)) for rank in ranks] == list(ranks)
    assert {mesh.position(rank) for rank in ranks} == set(range(mesh.pipeline))
    assert [mesh.position(rank) // mesh.tp for rank in ranks] == [mesh.stage(rank) for rank in ranks]


@given(meshes)
def test_the_ranks_of_a_stage_and_of_a_tensor_parallel_group_are_consecutive(mesh: MeshShape) -> None:
    assert [mesh.stage(rank) for rank in range(mesh.size)] == sorted(
        list(range(mesh.pp)) * mesh.data * mesh.tp
    )
    of_stage = [mesh.data_rank(rank) for rank in range(mesh.data * mesh.tp)]
    assert of_stage == sorted(list(range(mesh.data)) * mesh.tp)


@given(meshes)
def test_each_pipeline_has_one_leader(mesh: MeshShape) -> None:
    leaders = range(mesh.size)[mesh.leaders]
    assert [mesh.data_rank(rank) for rank in leaders] == list(range(mesh.data))
    assert {mesh.position(rank) for rank in leaders} == {0}


def test_a_dimension_that_is_left_out_has_one_rank() -> None:
    assert mesh_of("tp=2, fsdp=3") == MeshShape(fsdp=3, tp=2)
    assert str(MeshShape(pp=2, fsdp=3)) == "pp=2,replicate=1,fsdp=3,tp=1"
    assert str(MeshShape(fsdp=3)) == "replicate=1,fsdp=3,tp=1"


@pytest.mark.parametrize("text", ["", "2", "tp", "tp=0", "tp=-1", "tp=x", "tp=1,tp=2", "cp=2", "tp=2;fsdp=2"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        mesh_of(text)
