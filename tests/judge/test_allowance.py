from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.judge.allowance import (
    OVERSUBSCRIBED_SPREAD,
    TIMED_SPREAD,
    drift_of,
    spread_between_runs,
    tolerance_of,
)
from pytest_ddpperf.metrics.table import METRICS
from pytest_ddpperf.records.measurement import Series, Spread
from pytest_ddpperf.records.results import Noise
from tests.factories import make_environment

ROWS = {metric.name: metric for metric in METRICS}
ENVIRONMENT = make_environment(cpu_model="some cpu")


def series(metric: str, samples: Sequence[float]) -> Series:
    return ROWS[metric].series(tuple(samples))


@pytest.mark.parametrize(
    ("metric", "world_size", "expected"),
    [
        ("step_time", 8, TIMED_SPREAD),
        ("step_time", 9, OVERSUBSCRIBED_SPREAD),
        ("peak_resident", 9, 0.0),
        ("final_loss", 9, 0.0),
    ],
)
def test_times_deviate_between_runs_and_counts_do_not(metric: str, world_size: int, expected: float) -> None:
    environment = replace(ENVIRONMENT, world_size=world_size)

    assert spread_between_runs(series(metric, [1.0, 1.001]), environment).sd == expected


def test_the_spread_of_times_that_are_subtracted_is_an_amount() -> None:
    """1 % of 4 ms of a phase. What is left of two step times has the spread of a step: 1 % of 200 ms."""
    phase, exposed = (series(metric, [0.004]) for metric in ("phase_forward", "exposed_communication"))

    assert spread_between_runs(phase, ENVIRONMENT, 0.2).sd == pytest.approx(TIMED_SPREAD * 0.004)
    assert spread_between_runs(exposed, ENVIRONMENT, 0.2).sd == pytest.approx(TIMED_SPREAD * 0.2)
    assert spread_between_runs(exposed, ENVIRONMENT).sd == pytest.approx(TIMED_SPREAD * 0.004)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("step_time", 0.04),  # more than the default: as it is
        ("throughput", 0.04),
        ("phase_forward", 0.04 * 0.002),  # an amount: of its value
        ("straggler_skew", TIMED_SPREAD),  # ranks of one run share its deviation
        ("step_time_tail", TIMED_SPREAD / 2),  # and so do the steps of one launch
        ("peak_resident", 0.0),
        ("final_loss", 0.0),
    ],
)
def test_what_was_learned_of_times_holds_for_times(metric: str, expected: float) -> None:
    noise = Noise(between_runs=Spread(sd=0.04, df=4), floor=0.06, origin="calibrated on 2026-01-12")
    assert spread_between_runs(series(metric, [0.002]), ENVIRONMENT, noise=noise).sd == pytest.approx(expected)


@pytest.mark.parametrize(
    ("metric", "baseline", "tolerance", "expected"),
    [
        ("step_time", 20.0, 0.03, 0.03),
        ("peak_resident", 1e9, 0.03, 0.10),  # the slack
        ("peak_resident", 1e9, 0.20, 0.20),
        ("peak_resident", 2.0**24, 0.20, 0.5),  # 8 of 16 MiB
        ("final_loss", 0.001, 0.0, 0.03),
        ("final_loss", 10.0, 0.0, 0.3),  # 3 % of 10
        ("final_loss", -10.0, 0.05, 0.5),
        ("memory_growth", 1000.0, 0.05, 65536.0),  # the slack, in bytes
        ("memory_growth", 4e6, 0.05, 2e5),
    ],
)
def test_tolerances(metric: str, baseline: float, tolerance: float, expected: float) -> None:
    assert tolerance_of(series(metric, (baseline, baseline)), baseline, tolerance) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("baseline", "step", "expected"), [(0.08, 0.1, 0.0375), (0.001, 0.1, 3.0), (0.3, 0.1, 0.03), (0.08, None, 0.03)]
)
def test_what_a_step_has_a_core_for_may_differ_by_what_the_step_may(
    baseline: float, step: float | None, expected: float
) -> None:
    """3 % of a step of 100 ms are 3 ms; with more threads than one it may be above the step, and 3 % are 3 %."""
    assert tolerance_of(series("cpu_time", (0.08, 0.08)), baseline, 0.03, step) == pytest.approx(expected)


def test_runs_deviate_with_their_launches_whatever_a_calibration_has_told() -> None:
    """In times; not in bytes and losses, nor in what partners of one run share."""
    metrics = ("step_time", "throughput", "peak_resident", "final_loss", "step_time_tail", "exposed_communication")
    assert [drift_of(series(metric, [1.0, 1.1])) for metric in metrics] == [0.35, 0.35, 0.0, 0.0, 0.0, 0.0]
