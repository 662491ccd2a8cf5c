"""The page of a sweep: its order, its actions, and the best value over the trials that have ended."""

from __future__ import annotations

import pytest

from headway.contract.views.jobs import JobState
from service.console.html.fragments import Fragment
from service.console.pages.sweep import (
    SweepActions,
    SweepHead,
    best_chart,
    columns_of,
    ordered,
    sweep_fragments,
)
from service.console.pages.sweeps import state_chips
from tests.unit.service.console.sweep_views import sweep_view, trial_view

TRIALS = (
    trial_view(1, {"lr": 0.1}, 3.0),
    trial_view(2, {"lr": 0.01}, state=JobState.RUNNING),
    trial_view(3, {"lr": "auto"}, 1.0, state=JobState.FAILED),
    trial_view(4, {"lr": 0.5}, 2.0),
)
VIEW = sweep_view(TRIALS, {"lr": [0.1, 0.01, "auto", 0.5]}, 3)


def fragment_of(fragment_id: str, **changes: object) -> object:
    view = VIEW.model_copy(update=changes)
    found = sweep_fragments(view, may_control=True, order="")
    return next(one.value for one in found if isinstance(one, Fragment) and one.id == fragment_id)


@pytest.mark.parametrize(
    ("order", "numbers"),
    [
        ("", [1, 2, 3, 4]),
        ("-trial", [4, 3, 2, 1]),
        ("value", [3, 4, 1, 2]),
        ("-value", [1, 4, 3, 2]),
        ("state", [2, 1, 4, 3]),
        ("parameter.lr", [2, 1, 4, 3]),
        ("-parameter.lr", [3, 4, 1, 2]),
        ("parameter.width", [1, 2, 3, 4]),
    ],
)
def test_table_is_in_the_order_of_a_column_with_missing_values_last(order: str, numbers: list[int]) -> None:
    assert [one.number for one in ordered(VIEW, order)] == numbers


def test_best_value_comes_first_where_more_is_better() -> None:
    view = sweep_view(TRIALS, {"lr": [0.1, 0.01, "auto", 0.5]}, 1, goal="maximise")
    assert [one.number for one in ordered(view, "value")] == [1, 4, 3, 2]


def test_column_that_sorts_says_so_and_turns_round_at_the_next_click() -> None:
    columns = {one.name: one for one in columns_of(VIEW, "value")}
    assert (columns["best loss"].sorted, columns["best loss"].order) == ("ascending", "-value")
    assert (columns["lr"].sorted, columns["lr"].order) == ("none", "parameter.lr")
    turned = {one.name: one for one in columns_of(VIEW, "-value")}
    assert (turned["best loss"].sorted, turned["best loss"].order) == ("descending", "value")
    assert not columns["lr"].is_number, "one of its values is a text"


def test_best_value_steps_down_in_the_order_in_which_trials_ended() -> None:
    trials = [
        trial_view(1, {"lr": 0.1}, 2.0, finished_at=VIEW.submitted_at.replace(hour=3)),
        trial_view(2, {"lr": 0.01}, 3.0, finished_at=VIEW.submitted_at.replace(hour=1)),
        trial_view(3, {"lr": 0.5}, finished_at=VIEW.submitted_at.replace(hour=2)),
        trial_view(4, {"lr": 0.9}, 0.5, state=JobState.RUNNING),
    ]
    chart = best_chart(sweep_view(trials, {"lr": [0.1, 0.01, 0.5, 0.9]}, 4))
    assert chart.data["x"] == [1, 2, 3]
    assert chart.data["value"] == [3.0, None, 2.0]
    assert chart.data["best"] == [3.0, 3.0, 2.0]
    assert chart.rows == (("1", "digits-2", "3"), ("3", "digits-1", "2"))
    assert chart.words == ("After 3 ended trials the best loss is 2. digits-4, which has not ended, has 0.5.")


def test_chart_is_empty_until_a_trial_with_a_value_has_ended() -> None:
    chart = best_chart(sweep_view([trial_view(1, {"lr": 0.1})], {"lr": [0.1]}))
    assert chart.data["x"] == []
    assert chart.words == "No trial with a value of loss has ended yet."
    assert best_chart(sweep_view(TRIALS[:1], {"lr": [0.1]}, metric=None)).words == ""


@pytest.mark.parametrize(
    ("states", "verbs"),
    [
        ((JobState.RUNNING, JobState.SUCCEEDED), ("prioritize", "pause", "cancel")),
        ((JobState.RUNNING, JobState.PAUSED), ("prioritize", "pause", "resume", "cancel")),
        ((JobState.PAUSED,), ("prioritize", "resume", "cancel")),
        ((JobState.CANCELLING, JobState.CANCELLED), ()),
        ((JobState.SUCCEEDED,), ()),
    ],
)
def test_actions_are_those_that_would_change_a_trial(
    states: tuple[JobState, ...], verbs: tuple[str, ...]
) -> None:
    trials = [trial_view(at, {"lr": at}, state=state) for at, state in enumerate(states, start=1)]
    actions = fragment_of("sweep-actions", trials=trials)
    assert isinstance(actions, SweepActions)
    assert actions.verbs == verbs
    unseen = sweep_fragments(VIEW.model_copy(update={"trials": trials}), may_control=False, order="")
    assert (
        next(one.value for one in unseen if isinstance(one, Fragment) and one.id == "sweep-actions").verbs
        == ()
    )


def test_head_counts_states_and_names_the_best_with_its_parameters() -> None:
    head = fragment_of("sweep-head")
    assert isinstance(head, SweepHead)
    assert (head.summary, head.best_name, head.best_words) == (
        "4 trials, 3 ended.",
        "digits-3",
        "loss 1 with lr auto",
    )
    assert state_chips(VIEW) == (("good", "1 running"), ("done", "2 succeeded"), ("bad", "1 failed"))
    waiting = fragment_of("sweep-head", best=None)
    assert isinstance(waiting, SweepHead)
    assert waiting.summary.endswith("No trial has reported loss yet.")
