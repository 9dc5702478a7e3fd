from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_ddpperf.phases import PHASES, MemoryUse, PhaseTimes, SectionTimes
from pytest_ddpperf.records import Launch, RankLaunch
from pytest_ddpperf.reports.phases import phase_table
from pytest_ddpperf.results import Comparison, Result
from pytest_ddpperf.verdict import Verdict

Make = Callable[..., Result]
Compare = Callable[..., Comparison]


@pytest.fixture
def taken_apart(make_result: Make, make_comparison: Compare) -> Result:
    """Steps of 10 ms: 2.5 ms forward, 5 ms backward, 2.5 ms other; half of forward in a section of the user's."""
    seconds = dict.fromkeys(PHASES, (0.0,)) | {"forward": (0.0025,), "backward": (0.005,), "other": (0.0025,)}
    encode = SectionTimes("encode", 2, (0.00125,), (0.00125,), MemoryUse("heap", 3 * 2**19, None))
    ranks = tuple(
        RankLaunch(rank, (0.01,), {}, None, None, None, phases=PhaseTimes(seconds, (encode,))) for rank in range(2)
    )
    comparisons = tuple(make_comparison(f"phase_{phase}", seconds[phase][0], Verdict.NEW) for phase in PHASES)
    return make_result(comparisons=comparisons, measured={"launches": (Launch(0, ranks, 1.0),)})


def test_shares_of_a_step_add_up(taken_apart: Result) -> None:
    table = phase_table([taken_apart])
    assert table is not None
    assert table.headers == (
        *("benchmark", "variant"),
        *("data wait", "forward", "backward", "gradient sync", "optimizer", "other"),
    )
    assert table.rows == (("test_step[bucketed]", "bucketed", "-", "25", "50", "-", "-", "25"),)


def test_the_users_own_sections_are_told_below(taken_apart: Result) -> None:
    table = phase_table([taken_apart])
    assert table is not None
    assert table.notes == (
        "test_step[bucketed] bucketed, encode: 2 entries a step, 625 us each, 12.5 % of the step, +1.50 MiB of heap",
    )


def test_without_phases_there_is_no_table(make_result: Make) -> None:
    assert phase_table([make_result()]) is None
    assert phase_table([]) is None
