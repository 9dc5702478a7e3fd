from __future__ import annotations

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.run.network import sizes_between


def test_there_are_three_sizes_to_a_decade() -> None:
    assert sizes_between(1000, 100_000) == (1000, 2154, 4642, 10_000, 21_544, 46_416, 100_000)


def test_a_narrow_range_has_four_sizes() -> None:
    assert sizes_between(1000, 2000) == (1000, 1260, 1587, 2000)


def test_a_range_without_room_is_refused() -> None:
    with pytest.raises(SettingError, match="--max-size=1999 is less than twice --min-size=1000; give a wider range"):
        sizes_between(1000, 1999)
