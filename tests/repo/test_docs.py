"""The pages agree with the tree and with the contract."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from headway.contract.spec import JobSpec
from headway.contract.spec_parts import RESERVED_ENV
from headway.contract.spec_sweep import SweepSpec
from headway.local.rented import read_offers
from headway.yaml_source import read_yaml
from service.simulation.model.clusters import read_cluster

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")],
    key=lambda page: page.as_posix(),
)


def field_names(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted names as a job file spells them, the fields of parts included."""
    for name, field in model.model_fields.items():
        spelled = f"{prefix}{field.alias or name}"
        part = field.annotation
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield from field_names(part, f"{spelled}.")
        else:
            yield spelled


def documented_names(page: str) -> Iterator[str]:
    """Dotted names from the tables of the job file's page, by section."""
    prefix = ""
    for line in page.splitlines():
        if line.startswith("## "):
            section = re.match(r"## `(\w+)`", line)
            prefix = f"{section[1]}." if section else ""
            inside = bool(section) or line == "## Top level"
        elif line.startswith("| `") and inside:
            yield f"{prefix}{line.split('`')[1]}"


def test_the_job_file_page_has_every_field_and_no_other() -> None:
    page = (ROOT / "docs" / "job-file.md").read_text()
    assert sorted(documented_names(page)) == sorted(field_names(SweepSpec))


def test_names_of_the_environment_on_the_job_file_page_are_real() -> None:
    page = (ROOT / "docs" / "job-file.md").read_text()
    runtime = (ROOT / "headway" / "contract" / "runtime.py").read_text()
    for name in re.findall(r"`(HEADWAY_[A-Z_]+)`", page):
        assert f'"{name}"' in runtime, name
    section = page.split("## What a rank finds")[1].split("\n## ")[0]
    assert set(re.findall(r"`([A-Z][A-Z_]+)`", section)) <= RESERVED_ENV


def yaml_blocks() -> list[tuple[str, str]]:
    return [
        (page.relative_to(ROOT).as_posix(), block)
        for page in PAGES
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), flags=re.DOTALL)
    ]


@pytest.mark.parametrize(("page", "block"), yaml_blocks())
def test_a_file_in_the_pages_is_valid(page: str, block: str, tmp_path: Path) -> None:
    if "kinds:" in block:
        file = tmp_path / "cluster.yaml"
        file.write_text(block.replace("spot_file:", "# spot_file:"))
        assert len(read_cluster(file)) == 2, page
    elif "offers:" in block:
        file = tmp_path / "offers.yaml"
        file.write_text(block)
        assert read_offers(file).offers, page
    else:
        fields = read_yaml(block, page, 10**6)[0]
        assert (SweepSpec if "sweep" in fields else JobSpec).model_validate(fields).name, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text)
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_the_index_of_decisions_is_complete() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\d{4}-[^)]+\.md)\)", (folder / "README.md").read_text())
    assert listed == sorted(page.name for page in folder.glob("[0-9]*.md"))


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")), ids=lambda p: p.name
)
def test_a_decision_says_what_it_must(page: Path) -> None:
    text = page.read_text()
    for part in ("Context", "Decision", "Consequences", "Alternatives"):
        assert f"**{part}.**" in text
