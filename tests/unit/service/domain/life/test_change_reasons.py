"""Reasons of stops and changes in the commands that ranks read them from."""

from __future__ import annotations

import pytest

from headway.contract.agents import OrderCommand, StopCommand
from headway.contract.changes import ChangeKind, ChangeReason
from headway.contract.views.jobs import Reason
from service.domain.life import requests
from service.domain.life.commands import send_losses
from service.domain.life.ends import Aftermath
from service.domain.life.life import Life
from service.domain.life.starts import vacate
from tests.unit.service.domain.life.scenes import commands_of, life_of, ordered, training


def stop_reasons(life: Life) -> set[ChangeReason | None]:
    return {one.why for one in commands_of(life, StopCommand).values()}


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (Reason.NODE_DRAINED, ChangeKind.DRAIN),
        (Reason.SPOT_RECLAIMED, ChangeKind.SPOT_NOTICE),
        (Reason.PREEMPTED, ChangeKind.PRIORITY),
        (Reason.BETTER_ALLOCATION, ChangeKind.SCHEDULER),
        (Reason.BAD_DEVICE, ChangeKind.DEVICE),
        (Reason.HUNG, ChangeKind.OTHER),
    ],
)
def test_vacated_job_stops_with_the_kind_and_sentence_of_the_decision(
    reason: Reason, kind: ChangeKind
) -> None:
    life = vacate(life_of(training()), None, reason=reason, message="a sentence")
    assert stop_reasons(life) == {ChangeReason(kind, "a sentence")}


def test_pause_and_cancellation_stop_ranks_with_the_kind_of_their_cause() -> None:
    of_user = {"reason": Reason.USER_REQUEST}
    of_budget = {"reason": Reason.BUDGET}
    for cluster in (training(), ordered()):
        paused = requests.pause(life_of(cluster), **of_user, why="paused")
        spent = requests.pause(life_of(cluster), **of_budget, why="spent")
        cancelled = requests.cancel(
            life_of(cluster), Aftermath(), force=False, **of_user, message="cancelled"
        )
        for life, kind in (
            (paused, ChangeKind.USER),
            (spent, ChangeKind.BUDGET),
            (cancelled, ChangeKind.USER),
        ):
            (why,) = stop_reasons(life)
            assert why is not None
            assert (why.kind, bool(why.reason)) == (kind, True)


def test_order_has_the_reason_of_its_change_and_a_repeat_keeps_it() -> None:
    cluster = ordered()
    record = life_of(cluster).generations[2]
    inboxes = [agent.inbox for agent in cluster.agents.values()]
    sent = [one for inbox in inboxes for one in inbox if isinstance(one, OrderCommand)]
    assert {one.why and one.why.reason for one in sent} == {record.message}
    repeated = commands_of(send_losses(life_of(training())), OrderCommand).values()
    assert {one.why and one.why.reason for one in repeated} == {life_of(training()).generations[1].message}
