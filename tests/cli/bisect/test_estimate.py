"""How long a search may take, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.cli.bisect.commits import Range
from pytest_ddpperf.cli.bisect.endpoints import ends_of
from pytest_ddpperf.cli.bisect.estimate import search_lines, span
from pytest_ddpperf.cli.bisect.target import targets


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.84, "0.84 s"),
        (40, "40 s"),
        (60, "1 min"),
        (160, "2.7 min"),
        (3599, "60 min"),
        (5400, "1.5 h"),
        (1e6, "280 h"),
    ],
)
def test_a_time_has_two_digits(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_where_there_is_one_commit_it_is_that_of_the_confirmation(made: Any) -> None:
    told = made.outcome(made.timed(0.1), seconds=300.0)
    ends = ends_of(Range(Path("/nowhere"), "c0", "c1", {"c1": ("c0",)}), targets(told, None)[0], told)
    assert ends is not None
    assert search_lines(ends)[0] == "1 commit to search, 1 probe to confirm it, measuring for 5 min to 20 min"
