from __future__ import annotations

import gc

from pytest_ddpperf.instruments.collector import collector_paused


def test_the_collector_rests_inside_and_works_again_afterwards() -> None:
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_frozen_stays_frozen() -> None:
    """What a rank shares with the process it was forked from: to thaw it would have the next collection copy it."""
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with collector_paused():
            pass
        assert gc.get_freeze_count() > frozen / 2  # other threads may let go of some meanwhile
    finally:
        gc.unfreeze()
