from __future__ import annotations

from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path

import pytest

from service.adapters.provider_choice import providers_of
from service.domain.policies.registry import POLICIES
from service.environment import SettingsError
from service.main import wall_now
from service.plugins import PluginRefused, policies_of
from tests.unit.service.broken_plugins import Good

HERE = "tests.unit.service.broken_plugins"


def package(folder: Path, name: str, group: str, **entries: str) -> list[EntryPoint]:
    """The entry points of a package that pip has installed into the folder."""
    info = folder / f"{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    lines = [f"{key.replace('_', '-')} = {value}" for key, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[headway.{group}]", *lines]))
    return list(PathDistribution.at(info).entry_points)


def test_a_policy_of_a_package_stands_beside_the_built_in_ones(tmp_path: Path) -> None:
    found = policies_of(package(tmp_path, "acme", "policies", good=f"{HERE}:Good"))
    assert set(found) == {*POLICIES, "good"}
    assert next(iter(found)) == "goodput"
    assert found.policy("good", {"pace": 2}) == Good(pace=2.0)
    (described,) = (one for one in found.describe() if one.name == "good")
    assert [one.interval for one in described.parameters] == ["at least 0"]
    assert "good" not in POLICIES


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("good", "no_such_module:Good", "plugin_import"),
        ("good", f"{HERE}:Missing", "plugin_import"),
        ("no_dataclass", f"{HERE}:NoDataclass", "plugin_type"),
        ("without_text", f"{HERE}:WithoutText", "plugin_type"),
        ("another", f"{HERE}:Good", "plugin_type"),
        ("of_tomorrow", f"{HERE}:OfTomorrow", "plugin_protocol"),
        ("undeclared", f"{HERE}:Undeclared", "plugin_protocol"),
        ("fifo", f"{HERE}:Good", "plugin_name"),
    ],
)
def test_a_policy_that_cannot_be_used_is_refused_by_the_name_of_its_package(
    tmp_path: Path, name: str, value: str, code: str
) -> None:
    with pytest.raises(PluginRefused, match=r"acme 1\.5 .* uninstall acme\.") as refused:
        policies_of(package(tmp_path, "acme", "policies", **{name: value}))
    assert refused.value.code == code
    assert str(refused.value).startswith(f"{code}: ")


def test_two_packages_cannot_have_one_name(tmp_path: Path) -> None:
    both = [
        point
        for name in ("acme", "bolt")
        for point in package(tmp_path, name, "policies", good=f"{HERE}:Good")
    ]
    with pytest.raises(PluginRefused, match=r"of bolt .* acme has one") as refused:
        policies_of(both)
    assert refused.value.code == "plugin_name"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("half", f"{HERE}:HalfAProvider", "plugin_type"),
        ("half", "no_such_module:Half", "plugin_import"),
        ("local", f"{HERE}:HalfAProvider", "plugin_name"),
    ],
)
def test_a_provider_that_cannot_be_used_is_refused(tmp_path: Path, name: str, value: str, code: str) -> None:
    points = package(tmp_path, "acme", "providers", **{name: value})
    with pytest.raises(PluginRefused) as refused:
        providers_of([name], {}, wall_now, points)
    assert refused.value.code == code


def test_a_provider_that_is_not_named_is_not_imported(tmp_path: Path) -> None:
    points = package(tmp_path, "acme", "providers", half="no_such_module:Half")
    (provider,) = providers_of(["static"], {}, wall_now, points)
    assert provider.name == "static"


def test_a_name_that_nobody_has_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    points = package(tmp_path, "acme", "providers", half=f"{HERE}:HalfAProvider")
    with pytest.raises(SettingsError, match="ec2, half, kubernetes, local, slurm, static"):
        providers_of(["azure"], {}, wall_now, points)


@pytest.mark.parametrize("name", ["HEADWAY_LOCAL_OFFERS", "HEADWAY_LOCAL_MACHINES"])
def test_the_local_provider_needs_its_file_and_its_folder(name: str) -> None:
    env = {"HEADWAY_LOCAL_OFFERS": "/o.yaml", "HEADWAY_LOCAL_MACHINES": "/m"}
    assert providers_of(["local"], env, wall_now, [])[0].name == "local"
    del env[name]
    with pytest.raises(SettingsError, match=name):
        providers_of(["local"], env, wall_now, [])
