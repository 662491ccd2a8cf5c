from __future__ import annotations

import pytest

from headway.contract.spec import JobSpec
from headway.contract.spec_env import MOST_ENV_BYTES, env_problem
from headway.contract.spec_warnings import run_warnings, warnings_of


@pytest.mark.parametrize(
    ("value", "held"),
    [
        ("${HOME}/data", "'${HOME}'"),
        ("$DATA", "'$DATA'"),
        ("$(pwd)/x", "'$('"),
        ("{{ workdir }}/cache", "'{{ workdir }}'"),
        ("~/models", "'~/'"),
        ("/opt/lib:~/lib", "'~/'"),
        ("costs 5 $", None),
        ("a~b", None),
        ("{x}", None),
    ],
)
def test_a_value_that_looks_expanded_is_a_warning_with_its_variable(value: str, held: str | None):
    found = warnings_of(JobSpec(name="a", run="x", env={"WHERE": value}))
    assert len(found) == (held is not None)
    assert all(one.startswith(f"env.WHERE holds {held}") for one in found)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("python t.py --tag #42 --lr 0.1", ["#42 --lr 0.1"]),
        ("python\u00a0t.py", ["no-break space (U+00A0)"]),
        ("python t.py --name \u201ca b\u201d", ["U+201C", "U+201D"]),
        ("python t.py \u2013-lr 1", ["en dash (U+2013)"]),
        ("python t.py --tag '#4 \u00a0' \"\u201c #\" a\\ #b", []),
        ("python a.py  # first\npython b.py", []),
        ("# only", []),
        ("python t.py &", ["ends with &"]),
        ("nohup python t.py > log 2>&1 &", ["ends with &"]),
        ("(python t.py &)", ["ends with &"]),
        ("python t.py & disown", ["ends with &"]),
        ("python a.py &\npython b.py &  # both\n", ["ends with &"]),
        ("python a.py &\npython b.py &\nwait", []),
        ("serve & python t.py", []),
        ("python t.py 2>&1", []),
        ("python t.py 'a &'", []),
        ("python t.py \\&", []),
    ],
)
def test_a_command_that_a_shell_reads_otherwise_is_a_warning(run: str, words: list[str]):
    found = run_warnings(run)
    assert len(found) == len(words)
    assert all(word in one for word, one in zip(words, found, strict=True))


def test_an_environment_counts_names_values_and_secrets():
    assert env_problem({"A": "x"}, {"TOKEN": 100}) is None
    problem = env_problem({"A": "x"}, {"TOKEN": MOST_ENV_BYTES})
    assert problem is not None
    assert (problem[0], "the largest is TOKEN" in problem[1]) == ("env", True)


@pytest.mark.parametrize(
    ("folder", "held"),
    [("~/results", "'~/'"), ("out/$USER", "'$USER'"), ("{{ name }}", "'{{ name }}'"), ("results~", None)],
)
def test_an_output_folder_that_only_a_shell_would_expand_is_a_warning(folder: str, held: str | None):
    found = warnings_of(JobSpec.model_validate({"name": "a", "run": "x", "output": {"dir": folder}}))
    assert [held in one for one in found] == ([True] if held else [])


@pytest.mark.parametrize(
    ("folder", "held"), [("~/code", "'~/'"), ("$HOME/code", "'$HOME'"), ("../code~", None)]
)
def test_a_working_folder_that_only_a_shell_would_expand_is_a_warning(folder: str, held: str | None) -> None:
    found = warnings_of(JobSpec(name="a", run="x", workdir=folder))
    assert len(found) == (held is not None)
    assert all(one.startswith(f"workdir holds {held}: it is not expanded") for one in found)
