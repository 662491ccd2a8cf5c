"""Collective backends by name: what a device gets, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.train.collectives.gloo import Gloo
from headway.train.collectives.registry import CollectiveUnavailable, make_backend

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that registers backends: one that works, and some that do not."""
    (tmp_path / "some_collectives.py").write_text(
        "class Works: ...\nclass Breaks:\n    def __init__(self): raise OSError('no such network card')\n"
    )
    info = tmp_path / "some_collectives-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-collectives\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[headway.collectives]\nworks = some_collectives:Works\nbreaks = some_collectives:Breaks\n"
        "gone = some_collectives:Gone\nunimportable = no_such_module_at_all:Any\ngloo = some_collectives:Breaks\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_cpu_gets_gloo() -> None:
    assert isinstance(make_backend(None, CPU), Gloo)
    assert isinstance(make_backend("gloo", CUDA), Gloo), "the name counts more than the device"


@pytest.mark.skipif(torch.cuda.is_available(), reason="NCCL MAY WORK HERE")
@pytest.mark.parametrize(("name", "device"), [(None, CUDA), ("nccl", CPU)])
def test_nccl_without_a_gpu_is_refused(name: str | None, device: torch.device) -> None:
    with pytest.raises(CollectiveUnavailable, match="'nccl' does not work here") as refused:
        make_backend(name, device)
    assert refused.value.code == "COLLECTIVE_UNAVAILABLE"


def test_a_backend_of_a_package_is_found(package: Path) -> None:
    assert type(make_backend("works", CPU)).__name__ == "Works"


def test_no_package_replaces_a_backend_that_is_built_in(package: Path) -> None:
    assert isinstance(make_backend("gloo", CPU), Gloo)


@pytest.mark.parametrize(
    ("name", "cause"), [("breaks", OSError), ("gone", AttributeError), ("unimportable", ModuleNotFoundError)]
)
def test_a_backend_that_does_not_work_says_why(package: Path, name: str, cause: type[Exception]) -> None:
    with pytest.raises(CollectiveUnavailable) as refused:
        make_backend(name, CPU)
    assert isinstance(refused.value.__cause__, cause)
    assert str(refused.value.__cause__) in refused.value.what
    assert refused.value.hint


def test_an_unknown_name_is_answered_with_the_known_ones(package: Path) -> None:
    with pytest.raises(
        CollectiveUnavailable, match="breaks, gloo, gone, nccl, unimportable, works"
    ) as refused:
        make_backend("ucc", CPU)
    assert refused.value.hint
