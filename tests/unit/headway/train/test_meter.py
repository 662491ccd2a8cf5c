from __future__ import annotations

from headway.train.meter import Meter, StepTimes


def test_step_times_add_up_between_reports() -> None:
    meter = Meter(every_s=0.5)
    assert meter.due(10.0), "the first report waits for nothing"
    assert meter.take(10.0) == StepTimes()
    meter.add(2.0)
    meter.add(3.0)
    assert not meter.due(10.4)
    assert meter.due(10.5)
    assert meter.take(10.5) == StepTimes(steps=2, step_s_sum=5.0, step_s_squares=13.0)
    assert meter.take(10.6) == StepTimes()


def test_the_time_that_was_spent_waiting_adds_up_as_well() -> None:
    meter = Meter(every_s=0.5)
    meter.add(2.0, 0.5)
    meter.add(3.0, 0.25)
    meter.add(1.0)
    assert meter.take(10.0) == StepTimes(steps=3, step_s_sum=6.0, step_s_squares=14.0, sync_s_sum=0.75)
    assert not meter.due(10.49)
    assert meter.due(10.5)
