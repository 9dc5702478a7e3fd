from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.records.phases import PHASES, MemoryUse, PhaseTimes, SectionTimes
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.failure import failure_text
from pytest_ddpperf.reports.phases import parts_text, phase_table

Make = Callable[..., Result]
Compare = Callable[..., Comparison]


@pytest.fixture
def taken_apart(make_result: Make, make_comparison: Compare) -> Result:
    """Steps of 10 ms: 2.5 ms forward, 5 ms backward, 2.5 ms other; half of forward in a section of the user's."""
    seconds = dict.fromkeys(PHASES, (0.0,)) | {"forward": (0.0025,), "backward": (0.005,), "other": (0.0025,)}
    encode = SectionTimes(
        path="encode",
        count=2,
        seconds=(0.00125,),
        own_seconds=(0.00125,),
        memory=MemoryUse(kind="heap", change=3 * 2**19, peak=None),
    )
    ranks = tuple(
        RankLaunch(
            rank=rank,
            step_times=(0.01,),
            memory={},
            loss=None,
            samples_per_step=None,
            tokens_per_step=None,
            phases=PhaseTimes(seconds=seconds, sections=(encode,)),
        )
        for rank in range(2)
    )
    comparisons = tuple(make_comparison(f"phase_{phase}", seconds[phase][0], Verdict.NEW) for phase in PHASES)
    return make_result(comparisons=comparisons, measured={"launches": (Launch(round=0, ranks=ranks, seconds=1.0),)})


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


@pytest.fixture
def part(make_comparison: Compare) -> Compare:
    """Makes a part of a step: its metric, seconds before and now, and the ends of the interval of its change."""

    def make(metric: str, before: float, now: float, low: float, high: float) -> Comparison:
        interval = Interval(low=low, high=high, confidence=0.95)
        made = make_comparison(
            metric, now, Verdict.UNCHANGED, baseline=before, change=now - before, change_interval=interval
        )
        return replace(made, series=replace(made.series, unit="s", scale="difference"), gated=False)

    return make


def test_a_step_time_that_regressed_names_what_changed_and_what_did_not(make_result: Make, part: Compare) -> None:
    """Of a step of 41.8 ms 3 % are 1.254 ms. Nothing can be said of backward, and other takes less than that."""
    result = make_result(
        comparisons=(
            *make_result().comparisons,
            part("exposed_communication", 0.0012, 0.0063, 0.004, 0.0062),
            part("phase_forward", 0.012, 0.0121, -0.0009, 0.0011),
            part("phase_backward", 0.02, 0.0205, -0.001, 0.002),
            part("phase_optimizer", 0.005, 0.0045, -0.001, -0.0001),  # significant, and less than what is tolerated
            part("phase_other", 0.0001, 0.0002, 0.00009, 0.00011),
        )
    )
    line = (
        "exposed communication +5.10 ms [95 % CI +4.00 ms .. +6.20 ms]; "
        "forward and optimizer unchanged, each within 1.25 ms"
    )
    assert parts_text(result) == line
    assert failure_text(result, accept="pytest").splitlines()[2] == f"  {line}"


def test_communication_that_did_not_change_points_at_the_computation(make_result: Make, part: Compare) -> None:
    result = make_result(
        comparisons=(
            *make_result().comparisons,
            part("exposed_communication", 0.004, 0.0041, -0.0009, 0.0011),
            part("phase_gradient_sync", 0.009, 0.014, 0.004, 0.006),
            part("phase_backward", 0.02, 0.025, 0.003, 0.007),
        )
    )
    assert parts_text(result) == (
        "backward +5.00 ms [95 % CI +3.00 ms .. +7.00 ms]; gradient sync +5.00 ms [95 % CI +4.00 ms .. +6.00 ms]; "
        "exposed communication unchanged, within 1.25 ms"
    )


def test_the_part_that_changed_most_comes_first(make_result: Make, part: Compare) -> None:
    result = make_result(
        comparisons=(
            *make_result().comparisons,
            part("exposed_communication", 0.0012, 0.0034, 0.0001, 0.0043),
            part("phase_forward", 0.012, 0.020, 0.007, 0.009),
            part("phase_optimizer", 0.009, 0.004, -0.006, -0.004),
        )
    )
    assert parts_text(result) == (
        "forward +8.00 ms [95 % CI +7.00 ms .. +9.00 ms]; optimizer -5.00 ms [95 % CI -6.00 ms .. -4.00 ms]; "
        "exposed communication +2.20 ms [95 % CI +100 us .. +4.30 ms]"
    )


def test_what_may_be_chance_is_not_named(make_result: Make, make_comparison: Compare, part: Compare) -> None:
    chance = part("exposed_communication", 0.0012, 0.0063, -0.001, 0.0112)
    result = make_result(comparisons=(*make_result().comparisons, chance))
    assert parts_text(result) == ""
    assert "exposed" not in failure_text(result, accept="pytest")
    assert parts_text(make_result()) == ""
    new = make_comparison("step_time", 0.04, Verdict.NEW)
    assert parts_text(make_result(comparisons=(new, part("phase_forward", 0.012, 0.02, 0.007, 0.009)))) == ""
