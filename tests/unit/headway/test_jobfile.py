from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.contract.spec_parts import SpecPart, leaf_types
from headway.contract.spec_sweep import SweepSpec
from headway.jobfile import JobFileError, load, parse, read
from headway.jobfile_examples import EXAMPLES

GOOD = """\
name: digits
run: python digits.py
elastic:
  min: 1
  max: 4
"""


def complaint(text: str, *overrides: str) -> str:
    with pytest.raises(JobFileError) as caught:
        parse(text, "job.yaml", overrides)
    return str(caught.value)


def test_a_good_file_is_a_spec():
    spec = parse(GOOD, "job.yaml")
    assert (spec.name, spec.elastic.max) == ("digits", 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "  mn: 1\n", "job.yaml:6: elastic.mn: there is no such field; did you mean `min`?"),
        (
            GOOD + "maximum: 1\n",
            "job.yaml:6: maximum: there is no such field; there are after, audit, batch, ",
        ),
        (
            GOOD + "grace_s: 1\n",
            "job.yaml:6: grace_s: there is no such field; did you mean `checkpoint.grace_s`?",
        ),
        (
            GOOD + "batch: {globl: 3}\n",
            "job.yaml:6: batch.globl: there is no such field; did you mean `global`?",
        ),
        (GOOD.replace("max: 4", "max: 0"), "job.yaml:5: elastic.max: must be at least 1"),
        (GOOD.replace("max: 4", "max: many"), "job.yaml:5: elastic.max: must be a whole number"),
        (GOOD.replace("min: 1", "min: 8"), "job.yaml:3: elastic: min (8) is larger than max (4)"),
        (GOOD.replace("name: digits", "name: My Job"), "job.yaml:1: name: use a-z, 0-9 and -"),
        (GOOD.replace("name: digits\n", ""), "job.yaml: name: this field is needed"),
        (GOOD.replace("run: python digits.py", "run:"), "job.yaml:2: run: must be text"),
        (GOOD.replace("run: python digits.py", "run: ' '"), "job.yaml:2: run: run is empty"),
        (GOOD + "env:\n  A: 1\n", 'job.yaml:7: env.A: must be text; write it in quotes: "…"'),
        (GOOD + "env: {RANK: '1'}\n", "job.yaml:6: env: RANK: set by Headway for every rank"),
        (GOOD + "market: free\n", "job.yaml:6: market: must be 'on-demand', 'spot' or 'mixed'"),
        (GOOD + "  sizes: [1, x]\n", "job.yaml:6: elastic.sizes.1: must be a whole number"),
        (GOOD + "  sizes: odd\n", "job.yaml:6: elastic.sizes: must be 'any' or 'pow2', or must be a list"),
        (GOOD + "checkpoint: {every: soon}\n", "'soon' is not a duration; write it like 30s, 5m or 2h"),
        (GOOD + "resources: {memory_per_slot: lots}\n", "'lots' is not a size; write it like"),
        (GOOD + "elastic: 3\n", "job.yaml:6: elastic is given twice, first in line 3"),
        (GOOD + "x: [\n", "job.yaml:7: "),
        (
            GOOD + "python: {requirements: [a]}\n",
            "python.requirements: must be one text, not a list: the name of a",
        ),
        (GOOD + "workdir: {a: 1}\n", "workdir: must be one text, not a group of fields"),
        ("- a\n", "job.yaml is not a job file"),
        ("", "job.yaml is not a job file"),
        ("a: \x00", "job.yaml:1: "),
    ],
)
def test_an_error_names_line_and_field(text: str, expected: str):
    assert expected in complaint(text)


def test_every_wrong_field_is_listed_in_the_order_of_the_file():
    text = "nam: x\nrun: a\nelastic: {max: 0}\npriority: 200\n"
    fields = [line.split(": ")[1] for line in complaint(text).splitlines()]
    assert fields == ["name", "nam", "elastic.max", "priority"]


def test_overrides_replace_and_add_fields():
    spec = parse(
        GOOD, "job.yaml", ["elastic.max=8", "batch.global=64", "env.THREADS=2", "elastic.sizes=[2, 8]"]
    )
    assert spec.elastic.max == 8
    assert spec.elastic.sizes == (2, 8)
    assert spec.batch.global_ == 64
    assert spec.env == {"THREADS": "2"}


def test_overrides_are_checked_like_the_file():
    assert "elastic.max: must be at least 1" in complaint(GOOD, "elastic.max=0")
    assert "not of the form key=value" in complaint(GOOD, "elastic.max")
    assert "name has no fields" in complaint(GOOD, "name.x=1")


@pytest.mark.parametrize(
    ("line", "place", "write"),
    [
        ("priority: 050", "job.yaml:6: priority: ", "write 50"),
        ("priority: 08", "job.yaml:6: priority: ", ": 8"),
        ("priority: 0x1F", "job.yaml:6: priority: ", "write 31"),
        ("priority: 1_0", "job.yaml:6: priority: ", "write 10"),
        ('priority: "1_0"', "job.yaml:6: priority: ", ": 10"),
        ("priority: yes", "job.yaml:6: priority: must be a number, not true", "YAML reads yes"),
        ("checkpoint: {every: 1:30}", "job.yaml:6: checkpoint.every: ", "such as 90s"),
        ("checkpoint: {every: 0600}", "job.yaml:6: checkpoint.every: ", "write 600"),
        ("checkpoint: {every: 05m}", "job.yaml:6: checkpoint.every: ", ": 5m"),
        ("batch: {global: 1_024}", "job.yaml:6: batch.global: ", "write 1024"),
        ("output: {max_size: 010GiB}", "job.yaml:6: output.max_size: ", ": 10GiB"),
        ("goal: {target: {loss: 01.5}}", "job.yaml:6: goal.target.loss: ", "write 1.5"),
        ("goal: {target: {loss: on}}", "job.yaml:6: goal.target: loss: must be a number", "on and off"),
        ("hung_after: true", "job.yaml:6: hung_after: must be a number", "not true"),
    ],
)
def test_a_number_that_yaml_reads_otherwise_is_refused_with_the_right_form(line: str, place: str, write: str):
    message = complaint(f"{GOOD}{line}\n")
    assert message.startswith(place)
    assert write in message


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("env: {A: !!timestamp foo}", ["!!timestamp", "in quotes"]),
        ("env: {A: !!bool foo}", ["!!bool", "in quotes"]),
        ("priority: !!int '1:30'", ["!!int", "Leave it out"]),
        ("run: !foo x", ["!foo", "in quotes"]),
        ("env: &x {A: *x}", ["env.A holds itself", "in quotes"]),
        (f"env: {{A: {'1' * 5000}}}", ["env.A", "5,000 characters", "in quotes"]),
        (f"priority: {'1' * 5000}", ["priority", "a number", "Correct it"]),
        ("goal: {deadline: 2026-13-45}", ["`2026-13-45`", "a date", "Correct it"]),
        ("priority: -017", ["write -17"]),
        ("env: {<<: 3}", ["<< takes the fields of a group"]),
        ("env: {A: x #y}", ["not closed", "in quotes"]),
        ("on: 1", ["`on` as true or false", 'in quotes: "on"']),
        ("1: a", ["`1` as a number", 'in quotes: "1"']),
        ("~: a", ["`~` as nothing", 'in quotes: "~"']),
        ("2026-01-01: a", ["`2026-01-01` as a date"]),
        ("env: {no: x}", ["`no` as true or false", 'in quotes: "no"']),
        ("env: {~: x}", ["`~` as nothing"]),
        ("env: {010: x}", ["`010` as a number", 'in quotes: "010"']),
        ("env: {A: {{ a }}}", ["a group or a list stands", "in quotes"]),
        ("env: {A-B: x}", ["env.A-B: a variable's name has letters, digits and _"]),
        ("env: {A=B: x}", ["env.A=B: a variable's name", "before `: `"]),
        ("env: {A: '\u2028'}\nmax: 1", [":7: max"]),
        ("env: {A: '\x85'}\nmax: 1", [":7: max"]),
        ("env: {A: '\x0c'}", ["(U+000C)", "Remove it"]),
        ('env: {A: "\\ud800"}', ["env.A: holds U+D800, half a character"]),
        ('"\\ud800": x', ["half a character"]),
        ("image: UPPER", ["image: write it like"]),
    ],
)
def test_a_surprise_of_yaml_is_one_sentence_with_line_and_remedy(line: str, parts: list[str]):
    text = GOOD.replace("run: python digits.py\n", "") if line.startswith("run") else GOOD
    message = complaint(f"{text}{line}\n")
    assert message.startswith(f"job.yaml:{5 if text != GOOD else 7 if 'max: 1' in line else 6}: ")
    assert [part for part in parts if part not in message] == []
    assert "\n" not in message


@pytest.mark.parametrize("value", ["=", "<<", "!!str 1"])
def test_a_sign_of_yaml_alone_is_text(value: str):
    assert parse(f"{GOOD}env: {{A: {value}}}\n", "job.yaml").env["A"] in {"=", "<<", "1"}


@pytest.mark.parametrize("command", ["''", '"\\ud800"'])
def test_a_command_that_cannot_start_is_refused(command: str):
    message = complaint(f"name: digits\nrun: {command}\n")
    assert message.startswith("job.yaml:2: run: ")
    assert "must not be empty" in message or "half a character" in message


@pytest.mark.parametrize("value", ["!!bool foo", "&x [*x]", "1" * 5000, "\x0c", "*x"])
def test_an_override_that_is_no_yaml_is_the_text(value: str):
    assert "priority: must be" in complaint(GOOD, f"priority={value}")


def test_an_override_may_be_a_group():
    assert parse(GOOD, "job.yaml", ["elastic=min: 2\nmax: 3"]).elastic.max == 3


@pytest.mark.parametrize(
    ("value", "warned"),
    [("x #y", True), ("x # of the file", False), ("'x' #y", False), ("x#y", False)],
)
def test_a_comment_that_cuts_a_variable_is_a_warning(tmp_path: Path, value: str, warned: bool):
    file = tmp_path / "job.yaml"
    file.write_text(f"{GOOD}env:\n  A: {value}\n", encoding="utf-8")
    assert [("env.A ends before `#y`" in one) for one in read(file).warnings] == [True] * warned
    assert read(file, ["env.A=x #y"]).warnings == ()


def _warnings_of(tmp_path: Path, lines: str, *overrides: str) -> tuple[str, ...]:
    file = tmp_path / "job.yaml"
    file.write_text(f"{GOOD}{lines}\n", encoding="utf-8")
    return tuple(one.removeprefix(f"{file}:") for one in read(file, overrides).warnings)


@pytest.mark.parametrize(
    ("lines", "at"),
    [
        ("workdir: runs #3", "6: workdir"),
        ("output: {dir: a #b\n  }", "6: output.dir"),
        ("output:\n  dir: a #b", "7: output.dir"),
        ("progress:\n  regex: (?P<step>\\d+) # (?P<loss>\\d+)", "7: progress.regex"),
        ("parameters:\n  note: a #b", "7: parameters.note"),
        ("secrets:\n  TOKEN: a #b", "7: secrets.TOKEN"),
        ("python:\n  requirements: r.txt #dev", "7: python.requirements"),
        ("priority: 3 #b", None),
        ("market: spot #cheap", None),
        ("workdir: .  # of this file", None),
        ("workdir: '.' #b", None),
    ],
)
def test_a_comment_that_cuts_a_text_is_a_warning_with_its_field(tmp_path: Path, lines: str, at: str | None):
    found = _warnings_of(tmp_path, lines)
    assert [one.partition(" ends before `#")[0] for one in found] == ([] if at is None else [at])


def test_a_comment_that_cuts_a_wrong_pattern_is_named_in_its_refusal():
    message = complaint(f"{GOOD}progress:\n  regex: iter #(?P<step>\\d+)\n")
    assert message.startswith("job.yaml:7: progress.regex: it needs the named group step")
    assert "YAML takes `#(?P<step>\\d+)` for a comment" in message
    assert "comment" not in complaint(f"{GOOD}priority: x #y\n")


@pytest.mark.parametrize(
    ("lines", "warned"),
    [
        ("workdir: &x .", "6: YAML takes `&x` for a name"),
        ("env: {A: &x b}", "6: YAML takes `&x` for a name"),
        ("env: {A: &x b, B: *x}", None),
        ("workdir:", "6: workdir is empty, so no folder is uploaded"),
        ("workdir: null", None),
    ],
)
def test_a_value_that_yaml_takes_away_is_a_warning(tmp_path: Path, lines: str, warned: str | None):
    found = _warnings_of(tmp_path, lines)
    assert len(found) == (warned is not None)
    assert all(one.startswith(str(warned)) for one in found)
    assert len(_warnings_of(tmp_path, lines, "workdir=.")) == (
        warned is not None and "workdir is" not in warned
    )


@pytest.mark.parametrize(
    ("lines", "at"),
    [
        ("workdir: ~", "6: workdir"),
        ("output: {dir: ~}", "6: output.dir"),
        ("python:\n  lock: ~", "7: python.lock"),
    ],
)
def test_a_tilde_alone_is_no_folder(lines: str, at: str):
    assert complaint(f"{GOOD}{lines}\n").startswith(
        f"job.yaml:{at}: `~` is nothing to YAML; write the whole path"
    )
    assert parse(f"{GOOD}goal: {{search: ~}}\n", "job.yaml").goal.search is None


@pytest.mark.parametrize(
    ("lines", "at", "example"),
    [
        ("resources: {devices: a100}", "resources.devices", "`devices: [a100]`"),
        ("env: [A=1]", "env", '`env: {THREADS: "2"}`'),
        ("batch: 32", "batch", "`batch: {global: 256}`"),
        ("goal:", "goal", "`goal: {objective: time}`"),
        ("checkpoint: {every: .inf}", "checkpoint.every", "`every: 10m`"),
        ("parallel: {fsdp: many}", "parallel.fsdp", "`fsdp: auto`"),
        ("trackers: mlflow", "trackers", "`trackers: [tensorboard]`"),
        ("secrets: [A]", "secrets", "`secrets: {WANDB_API_KEY: wandb}`"),
        ("goal: {target: 1.5}", "goal.target", "`target: {loss: 1.5}`"),
        ("batch: {balance: on}", "batch.balance", "`balance: off`"),
    ],
)
def test_a_value_of_another_structure_is_refused_with_an_example(lines: str, at: str, example: str):
    message = complaint(f"{GOOD}{lines}\n")
    assert message.startswith(f"job.yaml:6: {at}: must be")
    assert f"write for example {example}, or leave" in message


def test_an_empty_group_is_refused_with_an_example():
    assert "`elastic: {min: 1, max: 4}`" in complaint("name: a\nrun: x\nelastic:\n")


@pytest.mark.parametrize(("field", "example"), sorted(EXAMPLES.items()))
def test_every_example_of_a_message_is_taken(tmp_path: Path, field: str, example: str):
    outer, _, inner = field.partition(".")
    file = tmp_path / "job.yaml"
    whole = {
        "sweep.parameters": f"sweep: {{metric: loss, parameters: {example}}}",
        "elastic.mix": f"elastic: {{max: 4, mix: {example}}}",
        "elastic.sizes": f"elastic: {{max: 4, sizes: {example}}}",
        "elastic.partial_backprop": f"elastic: {{max: 4, partial_backprop: {example}}}",
        "parallel": f"elastic: {{min: 2, max: 4}}\nparallel: {example}",
    }
    line = whole.get(field) or (f"{outer}: {{{inner}: {example}}}" if inner else f"{outer}: {example}")
    file.write_text(f"name: a\nrun: x\n{line}\n", encoding="utf-8")
    assert read(file, sweeps=True).warnings == ()


def test_every_group_of_the_job_file_has_an_example():
    groups = {
        name
        for name, info in SweepSpec.model_fields.items()
        for kind in leaf_types(info.annotation)
        if isinstance(kind, type) and issubclass(kind, SpecPart)
    }
    assert groups - EXAMPLES.keys() == set()


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("python a.py \\\n  --lr 1", 2),
        ("python a.py\n  --lr 1 \\\n  --b 2", 3),
        (">\n  python a.py \\\n  --lr 1", 3),
        ("|\n  python a.py \\\n  --lr 1", 0),
        ('"python a.py \\\n  --lr 1"', 0),
        ("python a.py \\", 0),
    ],
)
def test_a_continued_command_that_yaml_joins_is_a_warning(tmp_path: Path, command: str, line: int):
    file = tmp_path / "job.yaml"
    file.write_text(f"name: digits\nrun: {command}\nenv: {{}}\n", encoding="utf-8")
    found = read(file).warnings
    assert [one.startswith(f"{file}:{line}: run") and "`run: |`" in one for one in found] == [True] * bool(
        line
    )
    assert read(file, ["run=python u.py"]).warnings == ()


@pytest.mark.parametrize(
    "line", ["priority: 0", "checkpoint: {every: 0.5}", "priority: -0", "batch: {balance: off}"]
)
def test_a_plain_number_or_word_is_taken(line: str):
    assert parse(f"{GOOD}{line}\n", "job.yaml").name == "digits"


def test_a_number_for_text_must_be_in_quotes():
    lines = complaint(GOOD + "env: {A: 010, B: 1:30, C: no}\n").splitlines()
    assert [line.split(": ")[1] for line in lines] == ["env.A", "env.B", "env.C"]
    assert all("write it in quotes" in line for line in lines)


@pytest.mark.parametrize(
    ("command", "warned"),
    [
        ("python t.py --tag #42 --lr 0.1", "#42 --lr 0.1"),
        ("python t.py # train", "# train"),
        ("python t.py --tag '#42'", None),
        ("python t.py --tag a#42", None),
        ("'python t.py'  # a comment of the file", None),
        ("|\n  python t.py  # a comment of the script", None),
    ],
)
def test_a_comment_that_cuts_a_command_is_a_warning(tmp_path: Path, command: str, warned: str | None):
    file = tmp_path / "job.yaml"
    file.write_text(f"name: digits\nrun: {command}\n")
    found = read(file).warnings
    assert len(found) == (warned is not None)
    assert all(f"`{warned}`" in one for one in found)
    assert read(file, ["run=python u.py"]).warnings == ()


@pytest.mark.parametrize(
    ("text", "line", "remedy"),
    [
        ("run: python t.py --note lr: 0.1\n", 2, "in quotes"),
        ('run: x\nprogress: {regex: "(?P<step>\\d+)"}\n', 3, "single quotes"),
        ("run: x\nelastic:\n\tmin: 1\n", 4, "spaces"),
        ("run: x\n---\nname: b\nrun: y\n", 3, "a file of its own"),
        ('run: "python" t.py\n', 2, "in quotes as a whole"),
        ("run: *.py\n", 2, "in quotes"),
        ("run: @x\n", 2, "in quotes"),
    ],
)
def test_an_error_of_yaml_says_what_to_write(text: str, line: int, remedy: str):
    message = complaint(f"name: digits\n{text}")
    assert message.startswith(f"job.yaml:{line}: ")
    assert remedy in message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("elastic:\n\u00a0\u00a0min: 1\n", 4),
        ("elastic:\n  min:\u00a01\n  max: 1\n", 4),
        ("elastic:\n  min: 1\n\u2003 max: 1\n", 5),
        ("project: a\u00a0b\n", 3),
        ("elastic: {min: one\u202f}\n", 3),
    ],
)
def test_a_character_that_looks_like_a_space_is_named_with_its_line(text: str, line: int):
    message = complaint(f"name: digits\nrun: x\n{text}")
    assert "space (U+" in message
    assert f"job.yaml:{line}:" in message or f"line {line} holds" in message


def test_an_override_of_a_text_field_is_taken_as_it_stands():
    pattern = "loss: (?P<loss>[0-9.]+) step (?P<step>[0-9]+) # {x"
    spec = parse(
        f"{GOOD}workdir: .\npriority: 010\n",
        "job.yaml",
        [
            'run=python t.py --note "lr: 1" #',
            f"progress.regex={pattern}",
            "name=007",
            "env.A=no",
            "priority=9",
            "workdir=null",
        ],
    )
    assert spec.run == 'python t.py --note "lr: 1" #'
    assert (spec.progress.regex, spec.name, spec.env, spec.workdir) == (pattern, "007", {"A": "no"}, None)
    assert spec.priority == 9


def test_a_wrong_override_is_named_in_place_of_the_line():
    text = complaint(GOOD, "elastic.max=010", "priority=on", "market=free")
    assert [line.partition(": ")[0] for line in sorted(text.splitlines())] == [
        "--set elastic.max=010",
        "--set market=free",
        "--set priority=on",
    ]


def test_a_large_environment_is_refused_by_its_bytes(tmp_path: Path):
    file = tmp_path / "job.yaml"

    def refusal(*values: str) -> str:
        lines = [f"  BIG_{number}: {value}" for number, value in enumerate(values)]
        file.write_text("\n".join([GOOD.rstrip(), "env:", *lines]), encoding="utf-8")
        with pytest.raises(JobFileError) as caught:
            load(file)
        return str(caught.value)

    assert "job.yaml:7: env.BIG_0: " in refusal("x" * 40_000)
    assert "env.BIG_1: has 40,000 bytes, and one value may have 32,768" in refusal("x", "\u00e4" * 20_000)
    assert "job.yaml:6: env: the environment has" in refusal(*["x" * 32_000] * 20)
    assert "'BIG_10: xxx" in refusal(*["x" * 32_000] * 60)


def test_a_long_environment_of_short_values_is_taken(tmp_path: Path):
    file = tmp_path / "job.yaml"
    file.write_text(GOOD + "env:\n" + "".join(f"  B_{number}: {'x' * 12}\n" for number in range(4000)))
    assert len(load(file).env) == 4000


@pytest.mark.parametrize("path", ["/opt/bin:$PATH", "${PATH}:/opt/bin", "$HOME/bin:/bin"])
def test_a_path_with_a_reference_is_refused(path: str):
    message = complaint(f"{GOOD}env:\n  A: b\n  PATH: '{path}'\n")
    assert message.startswith("job.yaml:8: env.PATH: holds $")
    assert "set it in run" in message


def test_a_missing_file_is_explained(tmp_path: Path):
    with pytest.raises(JobFileError, match=r"nowhere\.yaml: No such file"):
        load(tmp_path / "nowhere.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(JobFileError, match="is not text"):
        load(tmp_path / "binary.yaml")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("ab: -[]{}'\"\n#&*", max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "run", "elastic", "x"]), inner)
    ),
    max_leaves=8,
)


@given(_VALUES | st.text(max_size=40))
def test_whatever_a_file_holds_the_error_is_one_for_people(value: object):
    with contextlib.suppress(JobFileError):
        parse(str(value), "job.yaml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("a.b=1", "--set a.b=1: a: there is no such field"),
        ("ELASTIC.MAX=3", "--set ELASTIC.MAX=3: ELASTIC: there is no such field; did you mean `elastic`?"),
        ("elastic.sizes.0=1", "--set elastic.sizes.0=1: elastic.sizes: must be 'any' or 'pow2'"),
        ("elastic..max=2", "--set elastic..max=2: not of the form key=value"),
        (".max=2", "--set .max=2: not of the form key=value"),
        ("env.A-B=1", "--set env.A-B=1: env.A-B: a variable's name has"),
    ],
)
def test_an_override_of_no_field_is_named_as_it_was_given(override: str, message: str):
    assert complaint(GOOD, override).startswith(message)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("goal: {target: {loss: 1e-3}}", "goal.target.loss", 0.001),
        ("goal: {target: {loss: -.5}}", "goal.target.loss", -0.5),
        ("goal: {max_cost_usd: 1e1}", "goal.max_cost_usd", 10.0),
        ("batch: {balance: {dead_band: 1e-2}}", "batch.balance.dead_band", 0.01),
        ("batch: {global: 1e3}", "batch.global_", 1000),
        ("checkpoint: {every: 1e2}", "checkpoint.every", 100.0),
        ("checkpoint: {every: 1e2s}", "checkpoint.every", 100.0),
        ("resources: {memory_per_slot: 1e9}", "resources.memory_per_slot", 1_000_000_000),
    ],
)
def test_a_number_with_an_exponent_is_that_number(line: str, field: str, value: float):
    spec = parse(f"name: a\nrun: python a.py\n{line}\n", "job.yaml")
    found: object = spec
    for name in field.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_a_text_that_looks_like_a_number_with_an_exponent_stays_as_written():
    spec = parse("name: a\nrun: python a.py\nenv: {LR: 1e-3}\n", "job.yaml")
    assert spec.env["LR"] == "1e-3"


def test_an_exponent_that_makes_no_whole_number_is_refused_where_one_is_needed():
    with pytest.raises(JobFileError, match=r"job.yaml:3: elastic.max"):
        parse("name: a\nrun: python a.py\nelastic: {max: 1e-3}\n", "job.yaml")


def test_error_of_a_thousand_wrong_fields_lists_twenty_and_counts_the_rest() -> None:
    text = "\n".join(f"wrong{n}: {{x: 1}}" for n in range(1_000))
    with pytest.raises(JobFileError) as caught:
        parse(text, "job.yaml")
    lines = caught.value.what.splitlines()
    assert len(lines) == 21
    assert lines[2].startswith("job.yaml:1: wrong0: there is no such field")
    assert lines[-1] == "job.yaml: 982 more fields are wrong", "1,000 and the missing name and run, less 20"


@pytest.mark.parametrize(("name", "command"), [("train.py", "python train.py"), ("go.sh", "bash go.sh")])
def test_a_script_in_place_of_a_job_file_is_refused_with_the_command_to_write(
    tmp_path: Path, name: str, command: str
):
    (tmp_path / name).write_text("import torch\n", encoding="utf-8")
    with pytest.raises(JobFileError, match="is a script, not a job file") as refused:
        load(tmp_path / name)
    assert command in refused.value.hint
