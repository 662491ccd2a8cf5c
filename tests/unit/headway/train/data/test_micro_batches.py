from __future__ import annotations

from headway.train.data.micro_batches import MicroBatchLimit

GB = 10**9


def test_without_a_bound_or_a_measurement_there_is_no_limit() -> None:
    assert MicroBatchLimit(None, None).most is None
    assert MicroBatchLimit(None, 16 * GB).most is None
    assert MicroBatchLimit(32, 16 * GB).most == 32


def test_the_limit_follows_from_what_a_sample_needs() -> None:
    limit = MicroBatchLimit(None, 20 * GB)
    limit.observe(16, peak_bytes=6 * GB, static_bytes=2 * GB)
    assert limit.most == 64, "a quarter of a GB each, in 90 % of 20 GB less 2"


def test_the_script_asked_for_less() -> None:
    limit = MicroBatchLimit(24, 20 * GB)
    limit.observe(16, peak_bytes=6 * GB, static_bytes=2 * GB)
    assert limit.most == 24


def test_what_did_fit_is_allowed() -> None:
    limit = MicroBatchLimit(None, 20 * GB)
    limit.observe(16, peak_bytes=int(19.5 * GB), static_bytes=2 * GB)
    assert limit.most == 16


def test_a_measurement_that_says_nothing_limits_nothing() -> None:
    limit = MicroBatchLimit(None, 20 * GB)
    limit.observe(16, peak_bytes=2 * GB, static_bytes=2 * GB)
    assert limit.most is None


def test_a_rank_without_samples_says_nothing() -> None:
    limit = MicroBatchLimit(None, 20 * GB)
    limit.observe(0, peak_bytes=3 * GB, static_bytes=2 * GB)
    assert limit.most is None
