"""A value of `run.report` is the mean over the ranks that report it, also when members change or are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from headway.contract.runtime import Metrics
from tests.elastic.harness import Job, codes
from tests.elastic.live import Live

STEPS = 5
"""40 samples by 8."""


def values(found: list[Metrics], name: str) -> list[float]:
    return [one.values[name] for one in found if name in one.values]


def test_report_of_two_ranks_is_their_mean(job: Callable[..., Job]) -> None:
    ended = job("reporting.py", "--epochs", 2).run(2)
    assert codes(ended) == [0, 0], ended.output()
    found = ended.messages(Metrics)
    assert not ended.messages(Metrics, rank=1)
    assert values(found, "rank") == [0.5] * 2 * STEPS
    assert values(found, "main") == [0.0] * 2 * STEPS
    assert values(found, "epoch_rank") == [0.5, 0.5]
    assert values(found, "epoch") == [0.0, 1.0]
    assert values(found, "before") + values(found, "after") == [0.0, 0.0]
    steps = [one.samples for one in found if "rank" in one.values]
    assert steps == [8 * step for step in range(2 * STEPS)], "the place of the report, not of its mean"
    assert [next(iter(one.values)) for one in found[-5:]] == ["main", "rank", "main", "epoch_rank", "after"]


def test_reports_around_a_growth_and_a_loss_are_means_and_none_is_lost(job: Callable[..., Job]) -> None:
    live = Live(job("reporting.py", "--epochs", 3))
    live.start(2, steps=3)
    live.wait_until_held()
    live.give(live.newcomers(live.members, 1))
    live.allow(4)
    live.wait_for_switch()
    live.wait_until_held()
    live.kill(live.members[2])
    live.give(live.survivors(live.members[:2]))
    live.allow_all()
    assert live.wait() == [0, 0], live.output()
    found = live.messages(Metrics)
    means = Counter((one.values["size"], one.values["rank"]) for one in found if "rank" in one.values)
    assert means.pop((3.0, 0.5), 0) <= 2, "of survivors: the step that was lost, and the one before it"
    assert set(means) == {(2.0, 0.5), (3.0, 1.0)}
    reported = Counter(one.samples for one in found if "rank" in one.values)
    assert set(reported) == {8 * step for step in range(3 * STEPS)}
    assert sorted(reported.values())[-2:] <= [1, 2], "a step is reported again only if it was lost"
    assert values(found, "epoch") == [0.0, 1.0, 2.0]
