"""The policies as another program calls them, and the page that shows how."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from service.domain.policies.framework.policy import RoundInput
from service.domain.policies.framework.work_left import LEAST_OWN_JOBS
from service.domain.policies.registry import POLICIES
from service.embedding import FinishedArrays, Guarantees, JobArrays, PolicyResult, Problem, Row, choose, solve

PAGE = (Path(__file__).parents[3] / "docs" / "embedding.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
GIVEN = {
    "goodput": [[10.0, 18.0, 30.0], [5.0, 9.0, 11.0], [7.0, 0.0, 0.0]],
    "slots": [1, 2, 4],
    "kind": [0, 0, 1],
    "capacity": [3, 4],
}


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_code_of_the_page_runs_and_is_short(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(block.splitlines()) <= 25
    exec(compile(block, "docs/embedding.md", "exec"), {})
    assert capsys.readouterr().out


def test_the_page_shows_the_whole_front_door() -> None:
    assert 'choose(\n    "goodput"' in BLOCKS[0]
    documented = set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE))
    assert JobArrays.__annotations__.keys() <= documented
    named = set(re.findall(r"`([\w-]+)`", PAGE))
    assert set(inspect.signature(choose).parameters) - {"policy", "jobs"} <= named
    assert POLICIES.keys() <= named
    assert FinishedArrays.__annotations__.keys() | Guarantees.__annotations__.keys() <= named
    assert {one.name for one in fields(PolicyResult)} <= named


def test_every_array_of_a_round_can_be_given() -> None:
    own = {"configurations", "rows", "goodput", "finished"}
    assert {one.name for one in fields(RoundInput)} - own == JobArrays.__annotations__.keys()


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_needs_no_more_than_a_table_and_slots(policy: str) -> None:
    result = choose(policy, **GIVEN)
    taken = np.bincount(
        np.array(GIVEN["kind"])[result.choices[result.choices >= 0]],
        np.array(GIVEN["slots"])[result.choices[result.choices >= 0]],
        minlength=2,
    )
    assert (taken <= GIVEN["capacity"]).all()
    assert (result.choices >= 0).any()
    assert result.bound >= result.objective
    assert result.prices.shape == (2,)
    assert result.choices.tolist() == choose(policy, **GIVEN).choices.tolist()


@pytest.mark.parametrize("policy", POLICIES)
def test_no_jobs_and_no_configurations(policy: str) -> None:
    nobody = choose(policy, goodput=np.zeros((0, 3)), slots=[1, 2, 4], kind=[0, 0, 1], capacity=[3, 4])
    assert nobody.choices.tolist() == []
    nowhere = choose(policy, goodput=np.zeros((2, 0)), slots=[], kind=[], capacity=[])
    assert nowhere.choices.tolist() == [-1, -1]


def test_further_rows_hold_and_have_a_price() -> None:
    demand = np.array([1.0, 2.0, 8.0])
    cap = Row(name="usd_per_h", capacity=4.0, demand=demand)
    quota = Row(name="quota", capacity=0.0, demand=np.ones(3), jobs=np.array([True, False, False]))
    result = choose("goodput", **GIVEN, rows=[cap, quota])
    assert result.choices[0] == -1
    assert demand[result.choices[result.choices >= 0]].sum() <= 4.0
    assert result.prices.shape == (4,)


def test_parameters_reach_the_policy() -> None:
    prices = {"usd_per_h": [1.0, 2.0, 6.0]}
    frugal = choose("budget", **GIVEN, **prices, parameters={"mu_h_per_usd": 50.0})
    lavish = choose("budget", **GIVEN, **prices, parameters={"mu_h_per_usd": 0.0})
    assert frugal.choices[0] == 0
    assert lavish.choices[0] == 2


def test_what_was_given_is_not_changed() -> None:
    goodput = np.array(GIVEN["goodput"])
    before = goodput.copy()
    choose("goodput", **(GIVEN | {"goodput": goodput}))
    assert (goodput == before).all()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"goodput": [1.0, 2.0]}, "give goodput as a table"),
        ({"goodput": [[1.0, 2.0, np.nan]] * 3}, r"goodput\[0, 2\] is nan; give finite numbers of at least 0"),
        ({"goodput": [[1.0, 2.0, -3.0]] * 3}, r"goodput\[0, 2\] is -3"),
        ({"goodput": [["many", 2.0, 3.0]]}, "goodput is not an array of numbers"),
        ({"slots": [1, 2]}, r"slots has the shape \(2,\); give it \(3,\)"),
        ({"slots": [1, 2, 0]}, r"slots\[2\] is 0; give finite numbers of at least 1"),
        ({"slots": [1, 2, 2.5]}, "slots has 2.5 in it; give whole numbers"),
        ({"kind": [0, 1, 2]}, r"kind\[2\] is 2; give finite numbers from 0 to 1"),
        ({"current": [0, 3, -1]}, r"current\[1\] is 3; give finite numbers from -1 to 2"),
        ({"remaining": [1.0, np.inf, np.nan]}, r"remaining\[1\] is inf; .*, or NaN where unknown"),
        ({"allowed": np.ones((3, 3))}, "allowed is of type float64; give booleans"),
        ({"served_s": np.ones(3)}, r"served_s has the shape \(3,\); give it \(3, 2\)"),
        ({"ages": [1, 2, 3]}, "there is no job array 'ages'; use one of allowed, "),
        ({"parameters": {"speed": 1}}, "no parameter 'speed'"),
        (
            {"finished": {"job_class": [0], "time": [1.0]}},
            "no array of ended jobs 'time'; use one of job_class",
        ),
        ({"finished": {"job_class": [0], "work": [1.0, 2.0]}}, r"work of ended jobs has the shape \(2,\)"),
        ({"finished": {"job_class": 0}}, "give one class for each"),
        ({"guarantees": {"min_s": 5.0}}, "no guarantee 'min_s'; use one of run_s"),
        ({"guarantees": {}, "seats": -1}, "give either guarantees"),
        ({"done": [-1.0, 0.0, 0.0]}, r"done\[0\] is -1"),
        ({"rows": [Row(name="cap", capacity=np.nan, demand=np.ones(3))]}, "capacity of row 'cap'"),
        ({"rows": [Row(name="cap", capacity=1.0, demand=np.ones(2))]}, "demand of row 'cap' has the shape"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(change, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        choose("goodput", **(GIVEN | change))


def test_an_unknown_policy_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="elastic-dp"):
        choose("best", **GIVEN)


def test_the_solver_can_be_used_alone() -> None:
    problem = Problem(
        utility=np.array([[3.0, 5.0], [2.0, 9.0]]),
        idle=np.zeros(2),
        rows=(Row(name="slots", capacity=3.0, demand=np.array([1.0, 2.0])),),
        current=np.full(2, -1),
    )
    solution = solve(problem, gap=0.0)
    assert solution.chosen.tolist() == [0, 1]
    assert solution.objective == pytest.approx(12.0)


ONE_SLOT = {"goodput": [[1.0], [1.0]], "slots": [1], "kind": [0], "capacity": [1]}
"""Two equal jobs that compete for a slot."""


@pytest.mark.parametrize(("work", "winner"), [((100.0, 4000.0), 0), ((4000.0, 100.0), 1)])
def test_the_job_whose_class_is_short_goes_first(work: tuple[float, float], winner: int) -> None:
    ended = work * LEAST_OWN_JOBS
    finished: FinishedArrays = {"job_class": [0, 1] * LEAST_OWN_JOBS, "work": ended, "run_s": ended}
    result = choose("goodput", **ONE_SLOT, job_class=[0, 1], done=0.0, finished=finished)
    assert np.flatnonzero(result.choices >= 0).tolist() == [winner]


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {"fifo"}))
def test_with_guarantees_minimums_precede_surplus_except_where_nobody_is_stopped(policy: str) -> None:
    table = [[10.0, 18.0], [1.0, 1.1]]
    known = {
        "slots": [1, 2],
        "kind": [0, 0],
        "capacity": [2],
        "current": [1, -1],
        "age_s": 900.0,
        "change_s": 0.0,
    }
    result = choose(policy, goodput=table, **known, guarantees={}, requested_slots=1)
    assert result.choices.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("guarantees", "holder"),
    [
        ({"run_s": [59.0, 0.0]}, 0),
        ({"run_s": [61.0, 0.0]}, 1),
        ({"run_s": [61.0, 0.0], "min_run_s": 300.0}, 0),
        ({"run_s": [59.0, 0.0], "priority": [0.0, 1.0]}, 1),
    ],
)
def test_a_run_lasts_for_its_minimum_and_then_yields_to_the_better_job(
    guarantees: Guarantees, holder: int
) -> None:
    known = {"current": [0, -1], "weight": [1.0, 9.0], "change_s": 0.0, "age_s": [100.0, 50.0]}
    result = choose("goodput", **ONE_SLOT, **known, guarantees=guarantees)
    assert result.choices[holder] == 0


@pytest.mark.parametrize(("run_s", "holder"), [(199.0, 0), (201.0, 1)])
def test_the_minimum_run_time_follows_from_the_cost_of_a_stop(run_s: float, holder: int) -> None:
    known = {"current": [0, -1], "weight": [1.0, 9.0], "change_s": 0.0, "stop_s": 10.0}
    guarantees: Guarantees = {"run_s": [run_s, 0.0]}
    result = choose("goodput", **ONE_SLOT, **known, age_s=[300.0, 50.0], guarantees=guarantees)
    assert result.choices[holder] == 0


def test_a_job_that_waited_long_enough_gets_its_turn() -> None:
    known = {"current": [0, -1], "weight": [1e6, 1.0], "age_s": [9000.0, 2000.0], "change_s": 0.0}
    assert choose("goodput", **ONE_SLOT, **known, guarantees={}).choices.tolist() == [-1, 0]
    patient = choose("goodput", **ONE_SLOT, **known, guarantees={"max_wait_s": 2001.0})
    assert patient.choices.tolist() == [0, -1]
