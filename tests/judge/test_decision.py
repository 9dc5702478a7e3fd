from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from pytest_ddpperf.judge.decision import Decision, DecisionContext, Evidence, decide_metric
from pytest_ddpperf.judge.detection import LAST_SHARE, PAIRED_LOOKS, SEPARATE_LOOKS, looks_better, looks_worse, mde
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.intervals import Change, change, paired, t_quantile
from pytest_ddpperf.stats.launches import Expected
from tests.factories import known
from tests.judge.made_up import STEADY, decided, difference, quotient, series

# Levels of all looks together that make 0.05 of one before the last, and of the last one: there the interval reaches
# 1.95996 standard errors with infinite degrees of freedom; one-sided 1.64485.
ALPHA, ALPHA_LAST = 0.05 * SEPARATE_LOOKS / (1 - LAST_SHARE), 0.05 / LAST_SHARE


@pytest.mark.parametrize(
    ("shift", "standard_error", "margin", "resolution", "expected"),
    [
        # Two keys open a verdict; here the margin is the tolerance, 0.03.
        (0.05, 0.02, 1.0, None, Verdict.REGRESSED),  # 0.05 > 0.0392 and > 0.03: both keys
        (0.05, 0.03, 1.0, None, Verdict.INCONCLUSIVE),  # 0.05 < 0.0588: not significant
        (0.02, 0.002, 1.0, None, Verdict.UNCHANGED),  # significant, but even the bound, 0.0233, is within the tolerance
        (0.02, 0.008, 1.0, None, Verdict.INCONCLUSIVE),  # significant and small, but the bound is 0.0332
        (-0.05, 0.02, 1.0, None, Verdict.IMPROVED),
        (-0.05, 0.03, 1.0, None, Verdict.UNCHANGED),  # an improvement by luck perhaps, but not worse: bound -0.0007
        (-0.05, 0.05, 1.0, None, Verdict.INCONCLUSIVE),  # bound 0.0322
        (-0.02, 0.002, 1.0, None, Verdict.UNCHANGED),  # better, but by less than the tolerance
        (0.03, 0.0, 1.0, None, Verdict.UNCHANGED),  # exactly what is tolerated
        (0.030001, 0.0, 1.0, None, Verdict.REGRESSED),
        (9.9, None, 1.0, None, Verdict.INCONCLUSIVE),
        # What is unchanged is shown not to reach the margin, here 0.05.
        (0.0, 0.03, 5 / 3, None, Verdict.UNCHANGED),  # bound 0.0493
        (0.0, 0.031, 5 / 3, None, Verdict.INCONCLUSIVE),  # bound 0.051
        (0.03, 0.012, 5 / 3, None, Verdict.UNCHANGED),  # significant, but no more than is accepted; bound 0.0497
        (0.031, 0.0, 5 / 3, None, Verdict.REGRESSED),  # the tolerance alone is a key
        (0.031, 0.016, 5 / 3, None, Verdict.INCONCLUSIVE),  # 0.031 < 0.0314: not significant, beyond the tolerance
        (0.04, 0.004, 5 / 3, None, Verdict.REGRESSED),  # though the bound, 0.0466, is within the margin
        # What is ok is shown not to reach the resolution.
        (0.0, 0.018, 1.0, 0.1, Verdict.UNCHANGED),  # bound 0.0296
        (0.0, 0.019, 1.0, 0.1, Verdict.OK),  # 0.0313: beyond the margin
        (0.0, 0.060, 1.0, 0.1, Verdict.OK),  # 0.0987
        (0.0, 0.061, 1.0, 0.1, Verdict.INCONCLUSIVE),  # 0.1003: beyond the resolution
        (0.05, 0.03, 1.0, 0.1, Verdict.OK),  # 0.0993, though the estimate is beyond the tolerance
        (0.05, 0.02, 1.0, 0.1, Verdict.REGRESSED),
        (-0.05, 0.05, 1.0, 0.1, Verdict.OK),  # 0.0322
        (0.0, None, 1.0, 0.1, Verdict.INCONCLUSIVE),
    ],
)
def test_a_bound_within_the_margin_is_unchanged_and_one_within_the_resolution_ok(
    shift: float, standard_error: float | None, margin: float, resolution: float | None, expected: Verdict
) -> None:
    one = difference(shift, standard_error)
    assert decided(one, tolerance=0.03, alpha=ALPHA, margin=margin, resolution=resolution) is expected


@pytest.mark.parametrize(
    ("shift", "error", "whole", "resolution", "expected"),
    [
        (0.0, 0.005, None, 0.1, Verdict.UNCHANGED),
        (0.0, 0.005, 0.10, 0.1, Verdict.UNCHANGED),
        (0.0, 0.005, 0.1001, 0.1, Verdict.INCONCLUSIVE),
        (0.03, 0.02, 0.10, 0.1, Verdict.OK),  # the bound is 0.0629; 1.96 errors are 0.0392
        (0.03, 0.02, 0.11, 0.1, Verdict.INCONCLUSIVE),
        (-0.05, 0.02, 0.10, 0.1, Verdict.IMPROVED),
        (-0.05, 0.02, 0.11, 0.1, Verdict.INCONCLUSIVE),
        (0.06, 0.03, 0.0, 0.1, Verdict.REGRESSED),  # 0.0588
        (0.06, 0.03, 0.11, 0.1, Verdict.REGRESSED),
        # The margin, 5 / 3 of 1.5 %, may hide in what is unchanged, if it is wider than the resolution.
        (0.0, 0.005, 0.024, 0.01, Verdict.UNCHANGED),
        (0.0, 0.005, 0.026, 0.01, Verdict.INCONCLUSIVE),
        (0.0, 0.005, 0.024, None, Verdict.UNCHANGED),
        (0.0, 0.005, 0.026, None, Verdict.INCONCLUSIVE),
    ],
)
def test_no_verdict_is_green_if_all_steps_are_worse_by_more_than_the_resolution(
    shift: float, error: float, whole: float | None, resolution: float | None, expected: Verdict
) -> None:
    change = difference(shift, error)
    assert decided(change, tolerance=0.015, alpha=ALPHA, resolution=resolution, whole=whole) is expected


@pytest.mark.parametrize(
    ("whole", "decision"),
    [
        (0.09, Decision(Verdict.UNCHANGED, Finding("proven_earlier", {"launches": 4}))),
        (0.11, Decision(Verdict.INCONCLUSIVE)),
    ],
)
def test_an_earlier_green_verdict_does_not_hold_once_long_steps_come(whole: float, decision: Decision) -> None:
    """The launches since have an error that proves nothing."""
    step = series("step_time", STEADY)
    context = DecisionContext(alpha=ALPHA, resolution=0.1, proven={"step_time": (4, 0.02)})
    evidence = Evidence(series=step, base=step, change=difference(0.0, 0.2), tolerance=0.015, whole=whole)
    assert decide_metric(evidence, context) == decision


@pytest.mark.parametrize(
    ("change", "tolerance", "effect"),
    [
        (difference(0.0, 0.01), 0.0, 0.0360481),  # (1.95996 + 1.64485) * 0.01
        (quotient(1.0, 0.01), 0.0, 0.0367057),  # exp(0.0360481) - 1
        (difference(0.0, 0.01), 0.03, 0.0464485),  # 0.03 + 1.64485 * 0.01, for 0.03 is more than 1.95996 * 0.01
        (difference(0.0, 0.0), 0.03, 0.03),
        (difference(0.0, None), 0.0, None),  # of a scatter that is not known
    ],
)
def test_the_smallest_detectable_effect_worked_by_hand(change: Change, tolerance: float, effect: float | None) -> None:
    found = mde(change, alpha=ALPHA_LAST, tolerance=tolerance)
    assert found == (None if effect is None else pytest.approx(effect, rel=1e-5))


def test_hopeless_scatter_still_gives_a_finite_effect() -> None:
    effect = known(mde(quotient(1.0, 1e6), alpha=ALPHA_LAST))
    assert math.isfinite(effect)


RUNS_WITH_MDE = 2000  # of 95 %, three binomial standard deviations are 1.5 %


@pytest.mark.parametrize(
    ("launches", "certainty", "tolerance"),
    [
        pytest.param(2, 0, 0.0, id="1 degree of freedom"),
        pytest.param(4, 0, 0.5, id="3"),
        pytest.param(6, 4, 0.0, id="5 and 4 of what is expected"),
    ],
)
def test_a_slowdown_of_the_printed_size_is_found_in_95_of_100_runs(
    launches: int, certainty: int, tolerance: float
) -> None:
    """Rounds scatter by 1, and each run is slowed down by what it says itself that it would have seen.

    What is expected is as uncertain as its degrees of freedom say.
    """
    rng, found = np.random.default_rng(launches + certainty), 0
    for _ in range(RUNS_WITH_MDE):
        samples = [float(one) for one in rng.normal(size=launches)]
        told = Expected(float(rng.chisquare(certainty)) / certainty, float(certainty)) if certainty else None
        one = known(paired(samples, [0.0] * launches, scale="difference", expected=told))
        effect = known(mde(one, alpha=0.002, tolerance=tolerance))
        slower = dataclasses.replace(one, shift=one.shift + effect)
        verdict = decided(slower, tolerance=tolerance, alpha=0.002, last=True)
        found += verdict is Verdict.REGRESSED
    assert found / RUNS_WITH_MDE == pytest.approx(0.95, abs=0.015)


def test_the_last_interim_analysis_requires_less_evidence() -> None:
    """0.036 is 1.8 standard errors: more than the 1.64485 of a level of 0.1, less than the 1.95996 of one of 0.05."""
    one = difference(0.036, 0.02)
    assert decided(one, tolerance=0.03, alpha=2 * ALPHA_LAST, last=True) is Verdict.REGRESSED
    assert decided(one, tolerance=0.03, alpha=ALPHA) is Verdict.INCONCLUSIVE


def test_interim_analyses_of_paired_rounds_get_a_smaller_level() -> None:
    """2.9 standard errors: more than 2.8070 (a level of 0.005), less than 3.2272 (a quarter of that)."""
    separate = difference(0.058, 0.02)
    together = dataclasses.replace(separate, paired_rounds=True)
    assert decided(separate, tolerance=0.03, alpha=ALPHA / 10) is Verdict.REGRESSED
    assert decided(together, tolerance=0.03, alpha=ALPHA / 10) is Verdict.INCONCLUSIVE


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
def test_interim_analyses_after_every_launch_keep_the_level(*, together: bool) -> None:
    """As ``decide`` looks, each at its part of the level; at all of it that would not hold.

    The last look at most of it, those before at theirs of the rest.
    """
    rng = np.random.default_rng(20260112)
    looks = PAIRED_LOOKS if together else SEPARATE_LOOKS
    alarms = np.zeros(2)
    for _ in range(RUNS):
        new = list(map(float, rng.normal(size=LAST)))
        base = list(map(float, rng.normal(size=LAST if together else 2 * LAST)))
        found = [
            paired(new[:n], base[:n], scale="difference", robust=True)
            if together
            else change(new[:n], base, scale="difference")
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
