from __future__ import annotations

import math
import random

import pytest

from pytest_ddpperf.baselines.history.change_points import Fit, change_points, exact_change_points

N = 200
SEEDS = range(1000, 1003)
SPREADS = ((1000, 0.01), (1001, 0.02), (1002, 0.03))


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


def test_a_step_without_noise_is_found_exactly() -> None:
    fit = change_points([1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0])
    (change,) = fit.changes
    assert (change.kind, change.before, change.after) == ("step", 3, 4)
    assert (change.earliest, change.latest) == (3, 4)
    assert change.size == pytest.approx(2.0)
    assert change.low == pytest.approx(2.0)
    assert change.high == pytest.approx(2.0)
    assert fit.levels == pytest.approx([1, 1, 1, 1, 3, 3, 3, 3])


def test_a_line_without_noise_is_one_creep() -> None:
    (change,) = change_points([0.5 * i for i in range(12)]).changes
    assert (change.kind, change.before, change.after) == ("creep", 0, 11)
    assert change.size == pytest.approx(5.5)


def test_steps_without_noise_are_found_exactly() -> None:
    fit = change_points([0.1 * (i // 20) for i in range(N)])
    assert kinds(fit) == ["step"] * 9
    assert [change.after for change in fit.changes] == list(range(20, N, 20))


@pytest.mark.parametrize("length", [7, 40])
def test_a_creep_without_noise_is_found_exactly(length: int) -> None:
    """Whatever its length: a search at some lengths alone would add steps at its ends."""
    (change,) = change_points(ramp(50, 50 + length, 0.1)).changes
    assert (change.kind, change.before, change.after) == ("creep", 50, 50 + length)


def test_the_interval_of_a_step_by_hand() -> None:
    """Levels 0 and 10, residuals of 1: variance 8 / (8 - 1 - 2), of the difference of two means of four half of it."""
    (change,) = change_points([-1, 1, 1, -1, 9, 11, 11, 9]).changes
    half = 2.5706 * math.sqrt(8 / 5 * (1 / 4 + 1 / 4))
    assert change.before == 3
    assert [change.low, change.size, change.high] == pytest.approx([10 - half, 10, 10 + half], abs=0.01)


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 50, [0.0] * 50, [1.0, 2.0, 1.0, 2.0] * 10])
def test_what_does_not_change(values: list[float]) -> None:
    fit = change_points(values)
    assert fit.changes == ()
    assert fit.levels == pytest.approx([sum(values) / len(values)] * len(values) if values else [])


def test_too_few_points_tell_nothing() -> None:
    assert change_points([1.0, 1.0, 9.0, 9.0, 9.0]).changes == ()
    assert len(change_points([1.0, 1.0, 1.0, 9.0, 9.0, 9.0]).changes) == 1


@pytest.mark.parametrize(("seed", "spread"), SPREADS)
def test_a_step_is_found_where_it_is(seed: int, spread: float) -> None:
    (change,) = change_points(added(noise(seed, spread), step(120, 0.06))).changes
    assert change.kind == "step"
    assert change.earliest < 120 <= change.latest
    assert abs(change.after - 120) <= 4
    assert change.size == pytest.approx(0.06, abs=0.015)


@pytest.mark.parametrize(("seed", "spread"), SPREADS[:2])
def test_a_creep_is_not_taken_for_steps(seed: int, spread: float) -> None:
    (change,) = change_points(added(noise(seed, spread), ramp(40, 140, 0.1))).changes
    assert change.kind == "creep"
    assert abs(change.before - 40) < 25
    assert abs(change.after - 140) < 25
    assert (change.evidence or 0.0) > 10
    assert change.size == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_in_a_row_are_not_taken_for_a_creep(seed: int) -> None:
    fit = change_points(added(noise(seed, 0.01), step(80, 0.04), step(120, 0.04)))
    assert kinds(fit) == ["step", "step"]
    assert [change.after for change in fit.changes] == [pytest.approx(80, abs=1), pytest.approx(120, abs=1)]


@pytest.mark.parametrize(("seed", "spread"), SPREADS[:2])
def test_a_creep_and_a_step_in_one_series(seed: int, spread: float) -> None:
    apart = change_points(added(noise(seed, spread), ramp(20, 120, 0.1), step(160, 0.06)))
    assert kinds(apart) == ["creep", "step"]
    assert abs(apart.changes[1].after - 160) <= 4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_amidst_a_creep(seed: int) -> None:
    fit = change_points(added(noise(seed, 0.01), ramp(0, 199, 0.08), step(120, 0.06)))
    found = {change.kind: change for change in fit.changes}
    assert len(fit.changes) == 2
    assert abs(found["step"].after - 120) <= 2
    assert found["creep"].size == pytest.approx(0.08, abs=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_soon_taken_back_is_two_steps(seed: int) -> None:
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


def test_better_and_worse_and_units_are_alike() -> None:
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


def test_counts_have_no_noise() -> None:
    fit = exact_change_points([5.0, 5.0, 9.0, 9.0, 4.0])
    assert [(c.before, c.after, c.size) for c in fit.changes] == [(1, 2, 4.0), (3, 4, -5.0)]
    assert fit.levels == (5.0, 5.0, 9.0, 9.0, 4.0)
    assert exact_change_points([]).changes == ()
