from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from pytest_ddpperf.records import Better
from pytest_ddpperf.stats.intervals import Change, change, paired, t_quantile
from pytest_ddpperf.stats.verdict import (
    LAST_SHARE,
    LOOKS_IN_ROUNDS,
    SEPARATE_LOOKS,
    decide,
    looks_better,
    looks_worse,
    mde,
    needed,
)
from pytest_ddpperf.verdict import Verdict

# Levels of all looks together that make 0.05 of one before the last, and of the last one: there the interval reaches
# 1.95996 standard errors with infinite degrees of freedom; one-sided 1.64485.
ALPHA, ALPHA_LAST = 0.05 * SEPARATE_LOOKS / (1 - LAST_SHARE), 0.05 / LAST_SHARE


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
    """With a margin that is the tolerance."""
    one = difference(shift, standard_error)

    assert decide(one, better="lower", tolerance=0.03, alpha=ALPHA, margin=1.0) is expected


@pytest.mark.parametrize(
    ("shift", "standard_error", "expected"),
    [
        (0.0, 0.03, Verdict.UNCHANGED),  # bound 0.0493
        (0.0, 0.031, Verdict.INCONCLUSIVE),  # bound 0.051
        (0.03, 0.012, Verdict.UNCHANGED),  # significant, but no more than is accepted; bound 0.0497
        (0.031, 0.0, Verdict.REGRESSED),  # the tolerance alone is a key
        (0.031, 0.01, Verdict.REGRESSED),  # 0.031 > 0.0196
        (0.031, 0.016, Verdict.INCONCLUSIVE),  # 0.031 < 0.0314: not significant, and the estimate beyond the tolerance
        (0.04, 0.004, Verdict.REGRESSED),  # though the bound, 0.0466, is within the margin
    ],
)
def test_what_is_unchanged_is_shown_not_to_reach_the_margin(
    shift: float, standard_error: float, expected: Verdict
) -> None:
    one = difference(shift, standard_error)
    assert decide(one, better="lower", tolerance=0.03, alpha=ALPHA, margin=5 / 3) is expected


@pytest.mark.parametrize("factor", [0.9, 0.96, 0.97, 0.975, 1.0, 1.029, 1.031, 1.1])
@pytest.mark.parametrize("standard_error", [0.0, 0.005, 0.02])
def test_a_time_and_its_rate_get_the_same_verdict(factor: float, standard_error: float) -> None:
    time = decide(ratio(factor, standard_error), better="lower", tolerance=0.03, alpha=ALPHA)
    rate = decide(ratio(1 / factor, standard_error), better="higher", tolerance=0.03, alpha=ALPHA)

    assert time is rate


@pytest.mark.parametrize(("better", "expected"), [("lower", Verdict.REGRESSED), ("higher", Verdict.IMPROVED)])
def test_the_direction_of_better_decides(better: Better, expected: Verdict) -> None:
    assert decide(ratio(1.2, 0.01), better=better, tolerance=0.03, alpha=ALPHA) is expected


def test_a_stricter_level_needs_stronger_evidence() -> None:
    """0.05 is 2.5 standard errors: more than 1.96, less than 2.58."""
    one = difference(0.05, 0.02)

    assert decide(one, better="lower", tolerance=0.03, alpha=ALPHA) is Verdict.REGRESSED
    assert decide(one, better="lower", tolerance=0.03, alpha=ALPHA / 5) is Verdict.INCONCLUSIVE


def test_without_tolerance_equal_counts_are_unchanged() -> None:
    same = change([12345.0] * 3, [12345.0] * 7, scale="ratio")
    assert same is not None

    assert decide(same, better="lower", tolerance=0.0, alpha=0.01) is Verdict.UNCHANGED


def test_the_smallest_detectable_effect_worked_by_hand() -> None:
    """(1.95996 + 1.64485) * 0.01 = 0.0360481; as a ratio exp(0.0360481) - 1 = 0.0367057."""
    assert mde(difference(0.0, 0.01), alpha=ALPHA_LAST) == pytest.approx(0.0360481, rel=1e-5)
    assert mde(ratio(1.0, 0.01), alpha=ALPHA_LAST) == pytest.approx(0.0367057, rel=1e-5)


def test_no_smaller_effect_is_found_than_the_tolerance_hides() -> None:
    """The key of size: 0.03 + 1.64485 * 0.01, for 0.03 is more than 1.95996 * 0.01."""
    assert mde(difference(0.0, 0.01), alpha=ALPHA_LAST, tolerance=0.03) == pytest.approx(0.0464485, rel=1e-5)
    assert mde(difference(0.0, 0.0), alpha=ALPHA_LAST, tolerance=0.03) == 0.03


def test_unknown_scatter_detects_nothing_that_could_be_named() -> None:
    assert mde(difference(0.0, None), alpha=ALPHA_LAST) is None
    assert needed(difference(0.0, None), better="lower", tolerance=0.03, alpha=ALPHA_LAST) is None


def test_hopeless_scatter_still_gives_a_finite_effect() -> None:
    effect = mde(ratio(1.0, 1e6), alpha=ALPHA_LAST)

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
    assert needed(difference(shift, 0.1), better="lower", tolerance=0.1, alpha=ALPHA_LAST, margin=1.0) == expected


def test_launches_needed_to_rule_out_the_margin() -> None:
    """Of 4 launches with an error of 0.1: 4 (0.1 * 1.64485 / 0.2)^2 = 2.7, but one more at least; of 0.2: 10.8."""
    one, other = difference(0.0, 0.1), difference(0.0, 0.2)
    assert needed(one, better="lower", tolerance=0.1, alpha=ALPHA_LAST, margin=2.0) == 5
    assert needed(other, better="lower", tolerance=0.1, alpha=ALPHA_LAST, margin=2.0) == 11


def test_launches_do_not_shrink_what_lies_between_runs() -> None:
    """(0.1 / 1.64485)^2 = 0.003696: less than 0.005 that stays, and 0.002696 more than 0.001 that stays."""
    hopeless = difference(0.0, 0.1, fixed=0.005)
    slow = difference(0.0, 0.1, fixed=0.001)

    assert needed(hopeless, better="lower", tolerance=0.1, alpha=ALPHA_LAST, margin=1.0) is None
    assert needed(slow, better="lower", tolerance=0.1, alpha=ALPHA_LAST, margin=1.0) == math.ceil(4 * 0.009 / 0.002696)


def test_launches_needed_do_decide_if_estimate_and_scatter_stay() -> None:
    now = difference(0.02, 0.1)
    enough = needed(now, better="lower", tolerance=0.1, alpha=ALPHA_LAST, margin=1.0)
    assert enough is not None

    then = difference(0.02, 0.1 * math.sqrt(4 / enough))
    one_less = difference(0.02, 0.1 * math.sqrt(4 / (enough - 1)))

    assert decide(then, better="lower", tolerance=0.1, alpha=ALPHA, margin=1.0) is Verdict.UNCHANGED
    assert decide(one_less, better="lower", tolerance=0.1, alpha=ALPHA, margin=1.0) is Verdict.INCONCLUSIVE


def test_the_last_look_asks_for_less() -> None:
    """0.036 is 1.8 standard errors: more than the 1.64485 of a level of 0.1, less than the 1.95996 of one of 0.05."""
    one = difference(0.036, 0.02)

    assert decide(one, better="lower", tolerance=0.03, alpha=2 * ALPHA_LAST, last=True) is Verdict.REGRESSED
    assert decide(one, better="lower", tolerance=0.03, alpha=ALPHA) is Verdict.INCONCLUSIVE


def test_looks_at_both_sides_of_a_round_get_less_of_the_level() -> None:
    """2.9 standard errors: more than 2.8070 (a level of 0.005), less than 3.2272 (a quarter of that)."""
    separate = difference(0.058, 0.02)
    together = dataclasses.replace(separate, in_rounds=True)

    assert decide(separate, better="lower", tolerance=0.03, alpha=ALPHA / 10) is Verdict.REGRESSED
    assert decide(together, better="lower", tolerance=0.03, alpha=ALPHA / 10) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("shift", "standard_error", "expected"),
    [
        (0.04, 0.03, True),  # 1.2816 standard errors are 0.0384
        (0.04, 0.032, False),  # 0.0410
        (0.029, 0.001, False),  # within the tolerance
        (-0.04, 0.001, False),
        (9.9, None, False),
    ],
)
def test_a_suspicion_needs_both_keys_but_little_certainty(
    shift: float, standard_error: float | None, *, expected: bool
) -> None:
    one = difference(shift, standard_error)

    assert looks_worse(one, better="lower", tolerance=0.03) is expected
    assert looks_better(one, better="higher", tolerance=0.03) is expected
    if standard_error is not None:
        assert looks_worse(difference(-shift, standard_error), better="higher", tolerance=0.03) is expected


FIRST, LAST = 6, 24
RUNS = 2000
LEVEL = 0.05  # one-sided; a lower one would take more runs to see


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
def test_looking_after_every_launch_keeps_to_the_level(*, together: bool) -> None:
    """As ``decide`` looks, each at its part of the level; at all of it that would not hold.

    The last look at most of it, those before at theirs of the rest.
    """
    rng = np.random.default_rng(20260112)
    looks = LOOKS_IN_ROUNDS if together else SEPARATE_LOOKS
    alarms = np.zeros(2)
    for _ in range(RUNS):
        new = list(map(float, rng.normal(size=LAST)))
        base = list(map(float, rng.normal(size=LAST if together else 2 * LAST)))
        found = [
            paired(new[:n], base[:n], scale="difference", outliers="both")
            if together
            else change(new[:n], base, scale="difference", outliers="high")
            for n in range(FIRST, LAST + 1)
        ]
        early = (1 - LAST_SHARE) * LEVEL / looks
        reach = [one.shift / one.standard_error for one in found if one is not None and one.standard_error]
        freedom = [one.df for one in found if one is not None]
        alarms += [
            any(t > t_quantile(1 - level, df) for t, level, df in zip(reach, levels, freedom, strict=True))
            for levels in ([*[early] * (len(reach) - 1), LAST_SHARE * LEVEL], [LEVEL] * len(reach))
        ]
    most = LEVEL * RUNS + 3 * math.sqrt(LEVEL * (1 - LEVEL) * RUNS)

    assert 0 < alarms[0] <= most
    assert alarms[1] > most
