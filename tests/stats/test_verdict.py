from __future__ import annotations

import math

import pytest

from pytest_ddpperf.records import Better
from pytest_ddpperf.stats.intervals import Change, change
from pytest_ddpperf.stats.verdict import decide, mde, needed
from pytest_ddpperf.verdict import Verdict

# With infinite degrees of freedom and alpha 0.05 the interval reaches 1.95996 standard errors; one-sided 1.64485.


def difference(shift: float, standard_error: float | None, *, fixed: float = 0.0, launches: int = 4) -> Change:
    """A change on the plain scale whose scatter is known as well as can be."""
    sampling = 0.0 if standard_error is None else standard_error**2 - fixed
    return Change(shift, None, "difference", False, shift, standard_error, math.inf, launches, sampling, fixed)  # noqa: FBT003


def ratio(factor: float, standard_error: float) -> Change:
    shift = math.log(factor)
    return Change(factor - 1, None, "ratio", True, shift, standard_error, math.inf, 4, standard_error**2, 0.0)  # noqa: FBT003


@pytest.mark.parametrize(
    ("shift", "standard_error", "expected"),
    [
        (0.05, 0.02, Verdict.REGRESSED),  # 0.05 > 0.0392 and > 0.03: both keys
        (0.05, 0.03, Verdict.INCONCLUSIVE),  # 0.05 < 0.0588: not significant
        (0.02, 0.002, Verdict.UNCHANGED),  # significant, but even the bound, 0.0233, is within the tolerance
        (0.02, 0.008, Verdict.INCONCLUSIVE),  # significant and small, but the bound is 0.0332
        (0.0, 0.018, Verdict.UNCHANGED),  # bound 0.0296
        (0.0, 0.019, Verdict.INCONCLUSIVE),  # bound 0.0313
        (-0.05, 0.02, Verdict.IMPROVED),
        (-0.05, 0.03, Verdict.UNCHANGED),  # an improvement by luck perhaps, but not worse: bound -0.0007
        (-0.05, 0.05, Verdict.INCONCLUSIVE),  # bound 0.0322
        (-0.02, 0.002, Verdict.UNCHANGED),  # better, but by less than the tolerance
        (0.03, 0.0, Verdict.UNCHANGED),  # exactly what is tolerated
        (0.030001, 0.0, Verdict.REGRESSED),
        (9.9, None, Verdict.INCONCLUSIVE),
    ],
)
def test_two_keys_open_a_verdict(shift: float, standard_error: float | None, expected: Verdict) -> None:
    one = difference(shift, standard_error)

    assert decide(one, better="lower", tolerance=0.03, alpha=0.05) is expected


@pytest.mark.parametrize("factor", [0.9, 0.96, 0.97, 0.975, 1.0, 1.029, 1.031, 1.1])
@pytest.mark.parametrize("standard_error", [0.0, 0.005, 0.02])
def test_a_time_and_its_rate_get_the_same_verdict(factor: float, standard_error: float) -> None:
    time = decide(ratio(factor, standard_error), better="lower", tolerance=0.03, alpha=0.05)
    rate = decide(ratio(1 / factor, standard_error), better="higher", tolerance=0.03, alpha=0.05)

    assert time is rate


@pytest.mark.parametrize(("better", "expected"), [("lower", Verdict.REGRESSED), ("higher", Verdict.IMPROVED)])
def test_the_direction_of_better_decides(better: Better, expected: Verdict) -> None:
    assert decide(ratio(1.2, 0.01), better=better, tolerance=0.03, alpha=0.05) is expected


def test_a_stricter_level_needs_stronger_evidence() -> None:
    """0.05 is 2.5 standard errors: more than 1.96, less than 2.58."""
    one = difference(0.05, 0.02)

    assert decide(one, better="lower", tolerance=0.03, alpha=0.05) is Verdict.REGRESSED
    assert decide(one, better="lower", tolerance=0.03, alpha=0.01) is Verdict.INCONCLUSIVE


def test_without_tolerance_equal_counts_are_unchanged() -> None:
    same = change([12345.0] * 3, [12345.0] * 7, scale="ratio")
    assert same is not None

    assert decide(same, better="lower", tolerance=0.0, alpha=0.01) is Verdict.UNCHANGED


def test_the_smallest_detectable_effect_worked_by_hand() -> None:
    """(1.95996 + 1.64485) * 0.01 = 0.0360481; as a ratio exp(0.0360481) - 1 = 0.0367057."""
    assert mde(difference(0.0, 0.01), alpha=0.05) == pytest.approx(0.0360481, rel=1e-5)
    assert mde(ratio(1.0, 0.01), alpha=0.05) == pytest.approx(0.0367057, rel=1e-5)


def test_no_smaller_effect_is_found_than_the_tolerance_hides() -> None:
    """The key of size: 0.03 + 1.64485 * 0.01, for 0.03 is more than 1.95996 * 0.01."""
    assert mde(difference(0.0, 0.01), alpha=0.05, tolerance=0.03) == pytest.approx(0.0464485, rel=1e-5)
    assert mde(difference(0.0, 0.0), alpha=0.05, tolerance=0.03) == 0.03


def test_unknown_scatter_detects_nothing_that_could_be_named() -> None:
    assert mde(difference(0.0, None), alpha=0.05) is None
    assert needed(difference(0.0, None), better="lower", tolerance=0.03, alpha=0.05) is None


def test_hopeless_scatter_still_gives_a_finite_effect() -> None:
    effect = mde(ratio(1.0, 1e6), alpha=0.05)

    assert effect is not None
    assert math.isfinite(effect)


@pytest.mark.parametrize(
    ("shift", "expected"),
    [
        (0.0, 11),  # 4 * 0.01 / (0.1 / 1.64485)^2 = 10.8
        (0.05, 44),  # half the margin, four times the launches: 43.3
        (0.15, 7),  # beyond the tolerance what matters is the distance from no change: 6.8
        (0.1, None),  # right on the limit: no number would do
    ],
)
def test_launches_needed_worked_by_hand(shift: float, expected: int | None) -> None:
    assert needed(difference(shift, 0.1), better="lower", tolerance=0.1, alpha=0.05) == expected


def test_launches_do_not_shrink_what_lies_between_runs() -> None:
    """(0.1 / 1.64485)^2 = 0.003696: less than 0.005 that stays, and 0.002696 more than 0.001 that stays."""
    hopeless = difference(0.0, 0.1, fixed=0.005)
    slow = difference(0.0, 0.1, fixed=0.001)

    assert needed(hopeless, better="lower", tolerance=0.1, alpha=0.05) is None
    assert needed(slow, better="lower", tolerance=0.1, alpha=0.05) == math.ceil(4 * 0.009 / 0.002696)


def test_launches_needed_do_decide_if_estimate_and_scatter_stay() -> None:
    now = difference(0.02, 0.1)
    enough = needed(now, better="lower", tolerance=0.1, alpha=0.05)
    assert enough is not None

    then = difference(0.02, 0.1 * math.sqrt(4 / enough))
    one_less = difference(0.02, 0.1 * math.sqrt(4 / (enough - 1)))

    assert decide(then, better="lower", tolerance=0.1, alpha=0.05) is Verdict.UNCHANGED
    assert decide(one_less, better="lower", tolerance=0.1, alpha=0.05) is Verdict.INCONCLUSIVE
