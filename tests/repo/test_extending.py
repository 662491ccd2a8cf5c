"""The examples in docs/extending.md are the files that tests install and use.

`tests/elastic/test_collectives.py` installs the example of a collective backend from the page itself.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE, _, COLLECTIVES = (ROOT / "docs" / "extending.md").read_text().partition("\n## A collective backend\n")
EXAMPLES = ROOT / "tests" / "integration" / "plugins"
FILES = {
    file.relative_to(EXAMPLES / folder).as_posix(): file.read_text()
    for folder in ("example", "endpoint")
    for file in sorted((EXAMPLES / folder).rglob("*"))
    if file.suffix in {".py", ".toml", ".html"} and file.name != "__init__.py"
}


def test_every_block_is_a_file_and_every_file_is_shown() -> None:
    blocks = re.findall(r"```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert sorted(blocks) == sorted(FILES.values())


def test_a_block_stands_under_the_path_of_its_file() -> None:
    shown = dict(re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
    assert shown == {path: text for path, text in FILES.items() if path != "pyproject.toml"}


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= 1200
    assert 0 < len(COLLECTIVES.split()) <= 350


def test_every_code_of_a_refusal_is_explained() -> None:
    raised = set(re.findall(r'"(plugin_\w+)"', (ROOT / "service" / "plugins.py").read_text()))
    assert set(re.findall(r"^\| `(plugin_\w+)` \|", PAGE, re.MULTILINE)) == raised
