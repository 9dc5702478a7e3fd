from __future__ import annotations

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.planner.sweep import sizes_between


def test_there_are_three_sizes_to_a_decade_and_four_in_a_narrow_range() -> None:
    assert sizes_between(1000, 100_000, 2) == (1000, 2152, 4640, 10_000, 21_544, 46_416, 100_000)
    assert sizes_between(1000, 2000, 2) == (1000, 1256, 1584, 2000)


def test_ranks_can_share_each_size_and_the_range_is_covered() -> None:
    """Floats of three ranks are 12 bytes. 64 ranks share multiples of 256 B; 323 and 406 B would be sent as 256."""
    sizes = sizes_between(1024, 2**14, 3)
    assert (sizes[0], sizes[-1]) == (1020, 16_392)
    assert all(size % 12 == 0 for size in sizes)
    assert sizes_between(256, 2048, 64) == (256, 512, 1024, 2048)


def test_a_range_with_too_few_sizes_is_refused() -> None:
    with pytest.raises(SettingError, match="only 3 sizes are multiples of 8 B, which 2 ranks can share evenly"):
        sizes_between(16, 32, 2)
    with pytest.raises(SettingError, match="--max-size=1999 must be at least twice --min-size=1000; give a wider"):
        sizes_between(1000, 1999, 2)
