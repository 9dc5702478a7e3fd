from __future__ import annotations

import pytest

from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.jobs import LaunchJob, PeriodicPlan
from pytest_ddpperf.training.subject import Script


@pytest.mark.parametrize(
    ("period", "steps", "taken_apart"),
    [
        pytest.param(None, 40, 5, id="no long steps"),
        pytest.param(None, 3, 3, id="fewer steps than usual"),
        pytest.param(4, 40, 5, id="five steps have a whole period"),
        pytest.param(10, 40, 10, id="one whole period"),
        pytest.param(40, 200, 40, id="forty at most"),
        pytest.param(41, 200, 5, id="what comes more seldom is not taken apart"),
        pytest.param(20, 16, 16, id="no more than a launch times"),
    ],
)
def test_a_diagnosis_covers_a_whole_period_of_long_steps(period: int | None, steps: int, taken_apart: int) -> None:
    """A script makes its first step, two of warm-up, one timed step, and one more than are taken apart."""
    script, plan = Script("train.py"), Plan(warmup=2, steps=1)
    if period is not None:
        plan = PeriodicPlan(warmup=2, steps=1, period=period)
    job = LaunchJob(script, None, Settings(), plan, stands_for=steps, growth=False)
    assert (job.steps_to_diagnose(), job.steps_needed) == (taken_apart, 1 + 2 + 1 + taken_apart + 1)


def test_a_period_of_times_that_are_means_of_several_steps_has_as_many_steps() -> None:
    """Each tenth time is long, and each is the mean of two steps."""
    plan = PeriodicPlan(warmup=0, steps=1, period=10)
    assert LaunchJob(Script("train.py"), None, Settings(), plan, stands_for=100).steps_to_diagnose(2) == 20
