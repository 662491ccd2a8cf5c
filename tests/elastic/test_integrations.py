"""The examples of other frameworks, as jobs of real processes: resized, killed, stopped and continued."""

from __future__ import annotations

import signal
from collections.abc import Callable
from importlib.util import find_spec

import pytest

from headway.contract.runtime import Completed, EpochClosed, FirstStep, Restored, Stopped
from tests.elastic.harness import Job, codes
from tests.elastic.live import Live
from tests.elastic.test_examples import EXAMPLES, final, in_training, stopped_once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None,
    reason="TRANSFORMERS IS NOT TESTED: pip install 'headway[transformers]'",
)
needs_lightning = pytest.mark.skipif(
    find_spec("lightning") is None, reason="LIGHTNING IS NOT TESTED: pip install 'headway[lightning]'"
)


@needs_lightning
def test_lightning_is_stopped_and_goes_on_at_another_size(job: Callable[..., Job]) -> None:
    digits = job(EXAMPLES / "digits_lightning.py", "--epochs", 6)
    stopped_once(digits, (1, 2), in_training)
    assert final(digits, "accuracy") >= 0.8
    assert [audit.exactly_once for audit in digits.messages(EpochClosed)] == [True] * 6


@needs_lightning
def test_lightning_grows_loses_a_rank_and_stops_in_place(job: Callable[..., Job]) -> None:
    live = Live(job(EXAMPLES / "digits_lightning.py", "--epochs", 10**6, HEADWAY_TRACKERS="tensorboard"))
    live.start(1)
    (first,) = live.members
    live.until(lambda: live.messages(FirstStep))

    live.give(live.newcomers([first], 1))
    grown = live.wait_for_switch()
    assert [(one.world_size, one.lost_steps) for one in grown] == [(2, 0)] * 2
    train_two_epochs(live)

    live.kill(live.members[1])
    live.give(live.survivors([first]))
    (left,) = live.wait_for_switch()
    assert left.world_size == 1
    train_two_epochs(live)

    live.give(live.newcomers([first], 1))
    live.wait_for_switch()
    train_two_epochs(live)
    for member in live.members:
        live.signal(member, signal.SIGTERM)
    assert live.wait() == [143, 143], live.output()

    audits = live.messages(EpochClosed)
    assert [audit.epoch for audit in audits] == list(range(len(audits)))
    assert all(audit.exactly_once for audit in audits)
    assert tensorboard_curve(live.job, "accuracy")[: len(audits)] == [
        22 * (epoch + 1) for epoch in range(len(audits))
    ]


def train_two_epochs(live: Live) -> None:
    so_far = len(live.messages(EpochClosed))
    live.until(lambda: len(live.messages(EpochClosed)) > so_far + 1)


def tensorboard_curve(job: Job, tag: str) -> list[int]:
    """The steps of a curve as TensorBoard shows it."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(job.checkpoints / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return [event.step for event in events.Scalars(tag)]


@needs_transformers
def test_the_trainer_goes_on_at_another_size_as_if_nothing_had_happened(job: Callable[..., Job]) -> None:
    """Stopped in its epoch at one rank and continued by two, it ends with the losses of a run that is left alone."""
    script = EXAMPLES / "digits_transformers.py"
    alone = job(script, "--epochs", 1)
    assert codes(alone.run(1)) == [0]
    resized = job(script, "--epochs", 1, HEADWAY_TRACKERS="tensorboard")
    second = stopped_once(resized, (1, 2), in_training)

    (stopped,) = resized.messages(Stopped)
    assert 0 < stopped.samples < 1400
    assert [one.samples for one in resized.messages(Restored)] == [stopped.samples]
    assert [one.samples for one in second.messages(Completed)] == [1400]
    assert [audit.exactly_once for audit in second.messages(EpochClosed)] == [True]
    for metric in ("eval_loss", "eval_accuracy"):
        assert final(resized, metric) == pytest.approx(final(alone, metric), rel=1e-4)
    assert tensorboard_curve(resized, "loss") == [20]
