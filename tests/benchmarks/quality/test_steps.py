"""What the ranks are told to add, from figures that divide without a rest."""

from __future__ import annotations

from benchmarks.quality.steps import (
    CONDITIONS,
    LENGTHS,
    OF_CAMPAIGNS,
    UNCHANGED,
    Calibration,
    Injection,
    elements_for,
    injection,
)

CALIBRATION = Calibration(step=0.01, product=2e-6, reduces={16: 1e-4, 1024: 4e-4, 65536: 3e-3})


def test_work_is_a_share_of_the_steps_own_length() -> None:
    """3 % of 10 ms is 300 us: 150 products of 2 us."""
    assert injection(CONDITIONS["+3%"], CALIBRATION) == Injection(products=150)


def test_one_step_in_ten_has_the_same_mean_effect() -> None:
    """Half a step once in ten steps is 5 % of each: 2500 products."""
    seldom, always = injection(CONDITIONS["1 step in 10"], CALIBRATION), injection(CONDITIONS["+5%"], CALIBRATION)
    assert seldom == Injection(products=2500, every=10)
    assert seldom.products / seldom.every == always.products


def test_the_unchanged_step_gets_nothing() -> None:
    assert injection(CONDITIONS[UNCHANGED], CALIBRATION) == Injection()


def test_the_all_reduce_that_comes_closest() -> None:
    """5 % of 10 ms is 0.5 ms: 0.4 ms is 1.25 times less, 3 ms six times more."""
    assert injection(CONDITIONS["comm +5%"], CALIBRATION) == Injection(elements=1024)
    assert elements_for(1e-9, CALIBRATION.reduces) == 16
    assert elements_for(1.0, CALIBRATION.reduces) == 65536


def test_lengths_of_real_runs_are_no_part_of_campaigns() -> None:
    assert OF_CAMPAIGNS == ("4ms", "12ms", "78ms")
    assert set(LENGTHS) - set(OF_CAMPAIGNS) == {"60ms"}
