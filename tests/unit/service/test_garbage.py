from __future__ import annotations

import gc

import pytest

from service.garbage import paused_collector


def test_the_collector_rests_and_goes_on_whatever_happens() -> None:
    def fails() -> None:
        with paused_collector():
            assert not gc.isenabled()
            raise ValueError("of the round")

    with pytest.raises(ValueError, match="of the round"):
        fails()
    assert gc.isenabled()


def test_who_finds_it_paused_leaves_it_so() -> None:
    with paused_collector():
        with paused_collector():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
