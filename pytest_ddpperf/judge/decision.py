"""The verdict on one change: two keys for red, proof for green, and what this run could have seen."""

from __future__ import annotations

import math

from pytest_ddpperf.records.measurement import Better
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.intervals import Change, from_log, half_width, t_quantile, with_launches

POWER = 0.95
UNPROVEN = 0.05  # one-sided: how often, at one look, a worsening just beyond the margin may pass as unchanged

MARGIN = 5 / 3
"""Times the tolerance: the worsening that what is unchanged is shown not to reach (a non-inferiority margin).

What lies between the two is worth no minutes of measuring: it may get any verdict, as between the hypotheses of a
sequential test (Wald 1945, its zone of indifference). To rule out the tolerance itself takes several times the
launches, and left a third of what is unchanged undecided. With twice the tolerance, side by side, more than one in 20
slowdowns of that much would pass as unchanged where launches scatter by 1 % (benchmarks/decision.py with 1, 2).
"""
SUSPICIOUS = 0.1  # one-sided: how often what is unchanged may look worse (or better) at one look, and be measured on
LAST_SUSPICIOUS = 0.3
"""The same where a suspicion comes last, beside a stored baseline: the other half of the time is spent either way.

What passes a screening there by chance is likely to pass the confirmation, which has the same baseline, so it is that
one which keeps the error budget, and the screening may let through what it likes.
"""

MOST_LAUNCHES = 100_000  # that are asked about: nobody waits for so many

LAST_SHARE = 0.7
"""Of the significance level, for the last look that there is time for: it sees most, and asks for least."""

SEPARATE_LOOKS, LOOKS_IN_ROUNDS = 2, 16
"""What looking after every launch costs: each look before the last tests at this part of the rest of the level.

Any of the looks at 6 to 48 launches falls below a level many times as often as a single one does: at the levels in use
(0.015 to 0.2 %, one-sided) all of them together keep theirs to within 1.2 times, by benchmarks/looks.py. Fewer beside a
baseline, whose own error is in all of them, judged with the smaller side's freedom.
"""


def decide(
    change: Change,
    *,
    better: Better,
    tolerance: float,
    alpha: float,
    margin: float = MARGIN,
    last: bool = False,
) -> Verdict:
    """What a change says about the new run.

    ``REGRESSED`` takes two keys: the change is for the worse with significance (the two-sided ``1 - alpha`` interval
    excludes no change), and its estimate is worse than the tolerance. ``IMPROVED`` is its mirror image. ``UNCHANGED``
    is a proof, not a lack of evidence: the one-sided 95 % bound of the worsening lies within the margin, and its
    estimate within the tolerance. (A red verdict has to stand in whole suites of tests, so it asks for more certainty
    than a green one.) Everything else is ``INCONCLUSIVE``.

    Args:
        change: from the baseline to the new run.
        better: the direction of an improvement.
        tolerance: the worsening that is accepted: a fraction for ratios, an amount for differences. On a logarithmic
            scale it means the same factor for both directions, so that a step time and the throughput made of it get
            the same verdict: 3 % worse is 1.03 times the time, or the throughput divided by 1.03.
        alpha: two-sided significance level, of all looks together.
        margin: the worsening that ``UNCHANGED`` rules out, times the tolerance; at least 1.
        last: whether there is no time for another look.
    """
    half = half_width(change, _level(change, alpha, last=last))
    if half is None:
        return Verdict.INCONCLUSIVE
    worsening, limit = _worsening(change, better), _limit(change, tolerance)
    bound = worsening + (half_width(change, 2 * UNPROVEN) or 0.0)
    if worsening - half > 0 and worsening > limit:
        return Verdict.REGRESSED
    if worsening + half < 0 and worsening < -limit:
        return Verdict.IMPROVED
    proven = bound <= _limit(change, margin * tolerance) and worsening <= limit
    return Verdict.UNCHANGED if proven else Verdict.INCONCLUSIVE


def looks_worse(change: Change, *, better: Better, tolerance: float, level: float = SUSPICIOUS) -> bool:
    """Whether a change looks so much worse that fresh launches have to tell: the two keys of ``decide``, easy to turn.

    Args:
        change: as of ``decide``.
        better: likewise.
        tolerance: likewise.
        level: one-sided: how often what is unchanged may look so.
    """
    half = half_width(change, 2 * level)
    return half is not None and _worsening(change, better) > max(half, _limit(change, tolerance))


def looks_better(change: Change, *, better: Better, tolerance: float) -> bool:
    """The mirror image of ``looks_worse``."""
    return looks_worse(change, better="higher" if better == "lower" else "lower", tolerance=tolerance)


def mde(change: Change, *, alpha: float, tolerance: float = 0.0, power: float = POWER) -> float | None:
    """The minimal detectable effect: the smallest true worsening that a last look finds with probability ``power``.

    ``(t(1 - alpha/2) + t(power)) * standard_error`` for the key of significance (Bloom 1995, "Minimum detectable
    effects"), and ``tolerance + t(power) * standard_error`` for the key of size; the larger one opens both.

    Returns:
        The effect in the tolerance's terms, or None where the scatter is unknown.
    """
    half = half_width(change, _level(change, alpha, last=True))
    if half is None or change.standard_error is None:
        return None
    reach = t_quantile(power, change.df) * change.standard_error if change.standard_error > 0 else 0.0
    smallest = max(half, _limit(change, tolerance)) + reach
    return from_log(smallest) if change.logarithmic else smallest


def needed(change: Change, *, better: Better, tolerance: float, alpha: float, margin: float = MARGIN) -> int | None:
    """About how many launches the new side needs in all for a verdict, if estimate and scatter stay what they are.

    A rough figure, for the estimate will move. It goes by the degrees of freedom that so many launches will have. More
    launches do not shrink the baseline's own error or the spread between runs. Arguments as of ``decide``.

    Returns:
        The smallest number of launches by which a last look would decide, at least one more than there are; None where
        ``MOST_LAUNCHES`` would not do, or the scatter is unknown.
    """
    if change.standard_error is None:
        return None

    def decided(launches: int) -> bool:
        later = with_launches(change, launches)
        verdict = decide(later, better=better, tolerance=tolerance, alpha=alpha, margin=margin, last=True)
        return verdict is not Verdict.INCONCLUSIVE

    low, high = change.launches, change.launches + 1
    while not decided(high):
        if high >= MOST_LAUNCHES:
            return None
        low, high = high, min(MOST_LAUNCHES, 2 * high)
    while high - low > 1:  # more launches hardly ever make a decided change undecided
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle) else (middle, high)
    return high


def _level(change: Change, alpha: float, *, last: bool) -> float:
    """The two-sided significance level of one look."""
    if last:
        return LAST_SHARE * alpha
    return (1 - LAST_SHARE) * alpha / (LOOKS_IN_ROUNDS if change.in_rounds else SEPARATE_LOOKS)


def _worsening(change: Change, better: Better) -> float:
    return change.shift if better == "lower" else -change.shift


def _limit(change: Change, tolerance: float) -> float:
    return math.log1p(tolerance) if change.logarithmic else tolerance
