from pathlib import Path

import pytest

from tools.check_sizes import FILE_LINES, FUNCTION_LINES, check, findings


def function_of(lines: int) -> str:
    return "def long():\n" + "    pass\n" * (lines - 1)


@pytest.mark.parametrize(("lines", "found"), [(FUNCTION_LINES, 0), (FUNCTION_LINES + 1, 1)])
def test_a_function_may_have_so_many_lines_and_no_more(lines: int, found: int) -> None:
    assert len(list(findings("service/x.py", function_of(lines)))) == found


@pytest.mark.parametrize(("lines", "found"), [(FILE_LINES, 0), (FILE_LINES + 1, 1)])
def test_a_file_may_have_so_many_lines_and_no_more(lines: int, found: int) -> None:
    assert len(list(findings("service/x.py", "x = 1\n" * lines))) == found


def test_a_long_file_that_gives_its_reason_is_no_finding() -> None:
    assert list(findings("service/x.py", "# long: a table of codes\n" + "x = 1\n" * FILE_LINES)) == []


def test_a_long_function_that_gives_its_reason_above_its_decorators_is_no_finding() -> None:
    reasoned = "# long: one case a line\n@cache\n" + function_of(FUNCTION_LINES + 1)
    assert list(findings("service/x.py", reasoned)) == []


def test_a_reason_above_one_function_does_not_count_for_the_next() -> None:
    source = (
        f"# long: one case a line\n{function_of(FUNCTION_LINES + 1)}\n\n{function_of(FUNCTION_LINES + 1)}"
    )
    assert len(list(findings("service/x.py", source))) == 1


def test_a_method_inside_a_class_counts_too() -> None:
    source = "class A:\n    async def long(self):\n" + "        pass\n" * FUNCTION_LINES
    assert ["long()" in line for line in findings("service/x.py", source)] == [True]


def test_a_migration_may_be_one_long_list_of_statements() -> None:
    assert list(findings("migrations/versions/0001.py", function_of(FUNCTION_LINES + 1))) == []


def test_a_finding_names_the_path_from_the_root(tmp_path: Path) -> None:
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "long.py").write_text(function_of(FUNCTION_LINES + 1))
    assert [line.split(" ")[0] for line in check(tmp_path)] == ["service/long.py:1:"]
