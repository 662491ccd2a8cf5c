import tomllib

from packaging.requirements import Requirement

from tools.check_pins import direct, parse_pins, unpinned, unsatisfied


def test_a_plain_pin_is_read_under_its_canonical_name() -> None:
    assert parse_pins("# why\nSQLAlchemy==2.1.9\nfastapi_offline==1.7.7\n") == (
        {"sqlalchemy": "2.1.9", "fastapi-offline": "1.7.7"},
        [],
    )


def test_what_is_no_plain_pin_is_a_problem() -> None:
    for line in (
        "torch==2.13.0+cpu",
        "numpy>=2",
        "-e .",
        "--index-url https://example.org",
        "a @ file:///a.whl",
        "httpx==0.28.*",
    ):
        assert parse_pins(line)[1] == [f"constraints.txt:1: {line!r} is not a plain name==version"]


def test_a_second_pin_of_one_package_is_a_problem() -> None:
    assert parse_pins("PyYAML==6.0.3\npyyaml==6.0.2\n")[1] == ["constraints.txt:2: pyyaml is pinned twice"]


def test_requirements_come_from_the_core_and_every_extra_but_not_from_headway_itself() -> None:
    pyproject = tomllib.loads(
        """
        [project]
        dependencies = ["httpx>=0.28"]
        [project.optional-dependencies]
        service = ["redis>=6"]
        dev = ["headway[service]", "ruff>=0.9"]
        """
    )
    assert [requirement.name for requirement in direct(pyproject)] == ["httpx", "redis", "ruff"]


def test_a_missing_pin_and_one_outside_its_bounds_are_problems() -> None:
    needed = [Requirement("httpx>=0.28,<1"), Requirement("redis>=6"), Requirement("rich>=13")]
    assert unsatisfied(needed, {"httpx": "1.0", "rich": "15.0"}) == [
        "httpx: pinned at 1.0, pyproject.toml wants <1,>=0.28",
        "redis: in pyproject.toml, but not in constraints.txt",
    ]


def test_what_a_dependency_needs_in_turn_must_be_pinned_too() -> None:
    pins = {"pytest": "9.2.0", "pluggy": "1.7.0", "packaging": "26.3", "pygments": "2.21.0"}
    assert unpinned([Requirement("pytest")], pins) == [
        "iniconfig: needed by pytest, but not in constraints.txt"
    ]


def test_what_an_extra_of_a_dependency_needs_must_be_pinned_too() -> None:
    pins = dict.fromkeys(("sqlalchemy", "typing-extensions"), "1")
    assert unpinned([Requirement("sqlalchemy[asyncio]")], pins) == [
        "greenlet: needed by sqlalchemy, but not in constraints.txt"
    ]


def test_a_requirement_for_another_platform_needs_no_pin() -> None:
    assert unpinned([Requirement("pywin32; platform_system == 'Nowhere'")], {}) == []


def test_a_package_of_an_extra_that_is_not_installed_needs_its_own_pin_only() -> None:
    extra = [Requirement("nobody-installs-this>=1")]
    assert unpinned(extra, {"nobody-installs-this": "1.0"}) == []
    assert unpinned(extra, {}) == ["nobody-installs-this: needed by headway, but not in constraints.txt"]
