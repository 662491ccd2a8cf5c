from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from worker_agent.environments import layer
from worker_agent.environments.layer import HostPackage


def test_host_packages_are_torch_headway_and_what_they_need() -> None:
    found = {one.name: one for one in layer.packages_of(layer.installed())}
    assert found["torch"].version == version("torch")
    assert {"headway", "numpy", "obstore", "sympy", "pydantic"} <= found.keys()
    assert not {"fastapi", "sqlalchemy", "pytest"} & found.keys()
    assert any(Path(link).name == "torch" for link in found["torch"].links)
    assert [Path(link).name for link in found["headway"].links] == ["headway"]
    assert all(Path(link).exists() for one in found.values() for link in one.links)


def test_package_that_the_installer_replaced_is_not_linked(tmp_path: Path) -> None:
    host, site = tmp_path / "host", tmp_path / "site"
    for folder in (host / "one", host / "two", host / "space" / "inner", site / "space"):
        folder.mkdir(parents=True)
    packages = [
        HostPackage("one", "1.0", "Name: one\n", (str(host / "one"), str(host / "space"))),
        HostPackage("Two.x", "1.0", "Name: two-x\n", (str(host / "two"),)),
    ]
    layer.describe(packages, site)
    assert (site / "two_x-1.0.dist-info" / "METADATA").exists()
    (site / "two_x-1.0.dist-info" / "INSTALLER").write_text("uv")
    assert layer.link(packages, site) == ["one"]
    assert (site / "one").resolve() == host / "one"
    assert (site / "space" / "inner").resolve() == host / "space" / "inner"
    assert not (site / "two").exists()
