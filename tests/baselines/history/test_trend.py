from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.baselines.history.database import Benchmark, Entry
from pytest_ddpperf.baselines.history.trend import Fit, Trend, change_points, trends
from pytest_ddpperf.records.measurement import Interval
from tests.factories import make_history_run

BENCHMARK = Benchmark(
    test="t.py::test_a",
    name="ddp",
    strategy="ddp",
    mode=None,
    recipe="{}",
    world_size=2,
    environment_key="cpu-a-2c",
    metric="step_time",
    unit="s",
    better="lower",
    scale="ratio",
)
COUNTED = replace(BENCHMARK, metric="collective_calls", unit="1", scale="exact")
PHASE = replace(BENCHMARK, metric="phase_optimizer", unit="s", scale="difference")
GROWTH = replace(BENCHMARK, metric="memory_growth", unit="B", scale="difference")
EFFICIENCY = replace(BENCHMARK, metric="scaling_efficiency", unit="1", better="higher", scale="difference")


def history(values: Sequence[float], benchmark: Benchmark = BENCHMARK, **fields: Any) -> list[Entry]:
    """A value for each of as many commits."""
    facts: dict[str, Any] = {"interval": None, "min_tolerance": 0.0, "gated": True, **fields}
    return [Entry(benchmark=benchmark, run=make_history_run(i), value=value, **facts) for i, value in enumerate(values)]


def found(trend: Trend) -> list[tuple[object, ...]]:
    return [(c.kind, c.before, c.after, pytest.approx(c.size)) for c in trend.changes]


def test_a_step_in_ratios_agrees_with_values_by_hand() -> None:
    (trend,) = trends(history([0.04] * 5 + [0.05] * 5))
    assert found(trend) == [("step", 4, 5, 0.25)]
    assert [point.level for point in trend.points] == pytest.approx([0.04] * 5 + [0.05] * 5)
    assert [point.change for point in trend.points] == [None, *map(pytest.approx, [0.0] * 4 + [0.25] + [0.0] * 4)]
    assert trend.worst == pytest.approx(0.25)


def test_differences_are_absolute_and_higher_may_be_better() -> None:
    (trend,) = trends(history([0.9] * 5 + [0.8] * 5, EFFICIENCY))
    assert found(trend) == [("step", 4, 5, -0.1)]
    assert trend.worst == pytest.approx(0.1)


def test_changes_of_values_that_may_be_zero_are_relative_to_the_mean() -> None:
    (trend,) = trends(history([0.0] * 5 + [2.0] * 5))
    assert found(trend) == [("step", 4, 5, 2.0)]  # 2 of a mean of 1
    assert trend.points[5].change == pytest.approx(2.0)
    assert trends(history([0.0] * 10))[0].changes == ()


def test_any_change_of_a_count_is_a_step() -> None:
    (trend,) = trends(history([5, 5, 9, 9], COUNTED), min_change=0.5)
    assert found(trend) == [("step", 1, 2, 4)]
    assert trend.worst == pytest.approx(0.8)
    assert trends(history([0, 1], COUNTED))[0].worst == math.inf


def test_a_count_that_differs_from_step_to_step_has_noise() -> None:
    assert trends(history([5, 6, 5, 6, 6, 5, 6, 5, 5, 6], COUNTED, gated=False))[0].changes == ()


def test_a_count_has_no_noise_because_one_run_did_not_gate_it() -> None:
    """There another count explained it, or the baseline lacked it."""
    first, *others = history([5, 5, 5, 5, 5, 9], COUNTED)
    (trend,) = trends([replace(first, gated=False), *others])
    assert found(trend) == [("step", 4, 5, 4)]


def test_small_changes_are_omitted() -> None:
    values = [0.04] * 5 + [0.0408] * 5
    assert len(trends(history(values), min_change=0.01)[0].changes) == 1
    assert trends(history(values), min_change=0.03)[0].changes == ()
    assert trends(history(values, min_tolerance=0.03), min_change=0.01)[0].changes == ()


def test_the_smallest_absolute_change_is_a_share_of_the_typical_value() -> None:
    """Seconds and bytes are no shares: 1 % is not 10 ms."""
    for old, new in ((0.004, 0.010), (-0.004, -0.010), (0.1, 0.102)):
        (trend,) = trends(history([old] * 5 + [new] * 5, PHASE))
        assert found(trend) == [("step", 4, 5, new - old)]
    assert trends(history([0.1] * 5 + [0.1009] * 5, PHASE))[0].changes == ()
    assert trends(history([0.1] * 5 + [0.102] * 5, PHASE), min_change=0.03)[0].changes == ()
    assert trends(history([0.9] * 5 + [0.892] * 5, EFFICIENCY))[0].changes == ()  # of plain numbers it is 0.01
    assert len(trends(history([0.1] * 5 + [0.112] * 5, EFFICIENCY))[0].changes) == 1


def test_the_smallest_tolerance_of_bytes_is_an_amount() -> None:
    tolerance = 64 * 2.0**10
    assert trends(history([0.0] * 5 + [tolerance - 1] * 5, GROWTH, min_tolerance=tolerance))[0].changes == ()
    assert len(trends(history([0.0] * 5 + [tolerance + 1] * 5, GROWTH, min_tolerance=tolerance))[0].changes) == 1
    assert (
        trends(history([2.0**30] * 5 + [2.0**30 + 2 * tolerance] * 5, GROWTH, min_tolerance=tolerance))[0].changes == ()
    )


def test_runs_of_one_commit_are_one_point() -> None:
    (first,) = history([0.09])
    again = replace(first, run=make_history_run(1, date="2026-05-01T00:00:00+00:00"))
    interval = Interval(low=0.03, high=0.05, confidence=0.95)
    (trend,) = trends([*history([0.04, 0.04, 0.04], interval=interval), again])
    assert [point.runs for point in trend.points] == [1, 2, 1]
    assert [point.value for point in trend.points] == pytest.approx([0.04, 0.06, 0.04])  # geometric
    assert [point.interval for point in trend.points] == [interval, None, interval]


def test_changed_work_trees_and_runs_without_git_are_separate_points() -> None:
    runs = [
        make_history_run(1),
        make_history_run(1, dirty=True),
        make_history_run(1, dirty=True),
        make_history_run(2, commit=None),
        make_history_run(3, commit=None),
    ]
    (entry,) = history([0.04])
    (trend,) = trends(replace(entry, run=commit) for commit in runs)
    assert [point.runs for point in trend.points] == [1] * 5


def test_different_benchmarks_are_separate_lines() -> None:
    for other in (replace(BENCHMARK, environment_key="cpu-b-8c"), replace(BENCHMARK, steps=65)):
        found = trends([*history([0.04] * 3), *history([0.01] * 4, other)])
        assert [(trend.benchmark, len(trend.points)) for trend in found] == [(BENCHMARK, 3), (other, 4)]


def test_option_last_keeps_only_the_last_commits() -> None:
    (trend,) = trends(history([0.04] * 10 + [0.05] * 10), last=10)
    assert [point.run for point in trend.points] == [make_history_run(i) for i in range(10, 20)]
    assert trend.changes == ()


def test_a_step_and_a_creep_among_unchanged_tests_and_nothing_else() -> None:
    """200 runs of ten tests: one has a step of 6 %, one a creep of 10 % over 100 runs."""
    for seed, spread in ((1000, 0.01), (1001, 0.02), (1002, 0.03)):
        generator = random.Random(seed)  # noqa: S311 - noise, not secrets
        recorded = []
        for number in range(10):
            size = {3: lambda i: 0.06 * (i >= 120), 7: lambda i: 0.1 * min(max((i - 40) / 100, 0), 1)}.get(number)
            truth = [1 + (size(i) if size else 0) for i in range(200)]
            values = [0.04 * value * generator.lognormvariate(0, spread) for value in truth]
            recorded += history(values, replace(BENCHMARK, test=f"t.py::test_{number}"))
        changed = {trend.benchmark.test: trend.changes for trend in trends(recorded) if trend.changes}
        assert set(changed) == {"t.py::test_3", "t.py::test_7"}
        (step,), (creep,) = changed["t.py::test_3"], changed["t.py::test_7"]
        assert (step.kind, creep.kind) == ("step", "creep")
        assert step.earliest < 120 <= step.latest
        assert step.after == pytest.approx(120, abs=4)
        assert [creep.before, creep.after] == pytest.approx([40, 140], abs=25)
        assert [step.size, creep.size] == [pytest.approx(0.06, abs=0.02), pytest.approx(0.1, abs=0.03)]
        assert (creep.evidence or 0.0) > 10 or spread > 0.02


N = 200
SEEDS = range(1000, 1003)


def noise(seed: int, spread: float, n: int = N) -> list[float]:
    generator = random.Random(seed)  # noqa: S311 - noise, not secrets
    return [generator.gauss(0, spread) for _ in range(n)]


def step(at: int, size: float, n: int = N) -> list[float]:
    return [size * (i >= at) for i in range(n)]


def ramp(first: int, last: int, size: float, n: int = N) -> list[float]:
    return [size * min(max((i - first) / (last - first), 0.0), 1.0) for i in range(n)]


def added(*parts: list[float]) -> list[float]:
    return [math.fsum(values) for values in zip(*parts, strict=True)]


def kinds(fit: Fit) -> list[str]:
    return [change.kind for change in fit.changes]


def test_steps_without_noise_are_found_exactly() -> None:
    fit = change_points([0.1 * (i // 20) for i in range(N)])
    assert kinds(fit) == ["step"] * 9
    assert [change.after for change in fit.changes] == list(range(20, N, 20))


@pytest.mark.parametrize("length", [7, 40])
def test_a_creep_without_noise_is_found_exactly(length: int) -> None:
    """Whatever its length: a search at some lengths alone would add steps at its ends."""
    (change,) = change_points(ramp(50, 50 + length, 0.1)).changes
    assert (change.kind, change.before, change.after) == ("creep", 50, 50 + length)


def test_the_interval_of_a_step_agrees_with_values_by_hand() -> None:
    """Levels 0 and 10, residuals of 1: variance 8 / (8 - 1 - 2), of the difference of two means of four half of it."""
    (change,) = change_points([-1, 1, 1, -1, 9, 11, 11, 9]).changes
    half = 2.5706 * math.sqrt(8 / 5 * (1 / 4 + 1 / 4))
    assert change.before == 3
    assert [change.low, change.size, change.high] == pytest.approx([10 - half, 10, 10 + half], abs=0.01)


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 50, [0.0] * 50, [1.0, 2.0, 1.0, 2.0] * 10])
def test_a_series_without_a_change_has_no_change_point(values: list[float]) -> None:
    fit = change_points(values)
    assert fit.changes == ()
    assert fit.levels == pytest.approx([sum(values) / len(values)] * len(values) if values else [])


def test_too_few_points_have_no_change_point() -> None:
    assert change_points([1.0, 1.0, 9.0, 9.0, 9.0]).changes == ()
    assert len(change_points([1.0, 1.0, 1.0, 9.0, 9.0, 9.0]).changes) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_in_a_row_are_not_taken_for_a_creep(seed: int) -> None:
    fit = change_points(added(noise(seed, 0.01), step(80, 0.04), step(120, 0.04)))
    assert kinds(fit) == ["step", "step"]
    assert [change.after for change in fit.changes] == [pytest.approx(80, abs=1), pytest.approx(120, abs=1)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_during_a_creep_is_found(seed: int) -> None:
    fit = change_points(added(noise(seed, 0.01), ramp(0, 199, 0.08), step(120, 0.06)))
    found = {change.kind: change for change in fit.changes}
    assert len(fit.changes) == 2
    assert abs(found["step"].after - 120) <= 2
    assert found["creep"].size == pytest.approx(0.08, abs=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_change_that_was_soon_taken_back_is_two_steps(seed: int) -> None:
    fit = change_points(added(noise(seed, 0.01), step(120, 0.06), step(130, -0.06)))
    assert kinds(fit) == ["step", "step"]
    assert [round(change.size, 1) for change in fit.changes] == [0.1, -0.1]


def test_outliers_are_named_and_make_no_change() -> None:
    values = noise(1, 0.01)
    for i in (50, 90, 199):
        values[i] += 0.5
    fit = change_points(values)
    assert fit.changes == ()
    assert fit.outliers == (50, 90, 199)


def test_change_points_do_not_depend_on_direction_or_unit() -> None:
    values = added(noise(3, 0.02), step(70, 0.05), ramp(100, 180, -0.09))
    here = change_points(values)
    there = change_points([5 - 1000 * value for value in values])
    assert [(c.kind, c.before, c.after) for c in here.changes] == [(c.kind, c.before, c.after) for c in there.changes]
    assert [-1000 * c.size for c in here.changes] == pytest.approx([c.size for c in there.changes])


@pytest.mark.parametrize("n", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_unchanged_series_are_left_alone(n: int) -> None:
    """At most 0.5 % of them by design; 300 seeded ones."""
    alarms = sum(bool(change_points(noise(seed, 0.02, n)).changes) for seed in range(300))
    assert alarms <= 3
