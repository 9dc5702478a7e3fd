"""What launches can show of a change: the two keys of a verdict, and the smallest worsening that they would find."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pytest_ddpperf.records.measurement import Better, Series
from pytest_ddpperf.stats.intervals import Change, from_log, half_width, t_quantile

POWER = 0.95
UNPROVEN = 0.05  # one-sided: how often a worsening just beyond the margin may pass as unchanged, over all looks
NEXT_PROOF = 2.0
"""Times the share of the time at one look that may prove, until which no other one does.

Looks that follow each other closely see nearly the same, and each costs a part of ``UNPROVEN``.
"""
OF_LOOK = 0.6
"""The level of a look that proves, as a part of what all looks until then may spend; the first one has all of it.

The looks share launches. With this part all of them together err in 5 % at most, wherever in the time they lie, where
launches come evenly, and in up to 6.5 % where a benchmark waits and has nearly all of them late: for independent
launches by simulation (tests/judge/test_judge.py), and less often where all looks share a baseline's error.
"""

EQUIVALENCE_MARGIN = 5 / 3
"""Times the tolerance: the worsening that an unchanged metric is shown not to reach (a non-inferiority margin).

A worsening between the two is worth no minutes of measuring: it may get any verdict, as between the hypotheses of a
sequential test (Wald 1945, its zone of indifference). To rule out the tolerance itself takes several times the
launches, and left a third of the unchanged benchmarks undecided. With twice the tolerance, side by side, a slowdown of
that much was proven unchanged too often where launches scatter by 1 %.
"""
SUSPICIOUS = 0.1  # one-sided: how often an unchanged metric may look worse (or better) at one look, and be measured on

GROSS_ALPHA = 0.01  # two-sided: the whole interval of a gross slowdown lies beyond ``gross``

LAST_SHARE = 0.7  # of the significance level, for the last look: it sees most, and asks for least

SEPARATE_LOOKS, PAIRED_LOOKS = 2, 16
"""What looking after every launch costs: each look before the last tests at this part of the rest of the level.

Any of the looks at 6 to 48 launches falls below a level many times as often as a single one does: at the levels in use
(0.015 to 0.2 %, one-sided) all of them together keep theirs to within 1.2 times, by simulation. Fewer beside a
baseline, whose own error is in all of them, judged with the smaller side's freedom.
"""


def looks_worse(change: Change, *, better: Better, tolerance: float) -> bool:
    """Whether a change looks so much worse that fresh launches judge it: the two keys of ``decide``, easy to turn."""
    half = half_width(change, 2 * SUSPICIOUS)
    return half is not None and worsening(change, better) > max(half, limit(change, tolerance))


def looks_better(change: Change, *, better: Better, tolerance: float) -> bool:
    """The mirror image of ``looks_worse``."""
    return looks_worse(change, better="higher" if better == "lower" else "lower", tolerance=tolerance)


def mde(change: Change, *, alpha: float, tolerance: float = 0.0) -> float | None:
    """The minimal detectable effect: the smallest true worsening that a last look finds with probability ``POWER``.

    ``(t(1 - alpha/2) + t(POWER)) * standard_error`` for the key of significance (Bloom 1995, "Minimum detectable
    effects"), and ``tolerance + t(POWER) * standard_error`` for the key of size; the larger one opens both. In the
    tolerance's terms; None if the scatter is unknown.
    """
    half = half_width(change, level_of_look(change, alpha, last=True))
    if half is None or change.standard_error is None:
        return None
    reach = t_quantile(POWER, change.df) * change.standard_error if change.standard_error > 0 else 0.0
    smallest = max(half, limit(change, tolerance)) + reach
    return from_log(smallest) if change.logarithmic else smallest


def level_of_look(change: Change, alpha: float, *, last: bool) -> float:
    """The two-sided significance level of one look."""
    if last:
        return LAST_SHARE * alpha
    return (1 - LAST_SHARE) * alpha / (PAIRED_LOOKS if change.paired_rounds else SEPARATE_LOOKS)


def worsening(change: Change, better: Better) -> float:
    """The change in the direction that is worse, on the scale of analysis."""
    return change.shift if better == "lower" else -change.shift


@dataclass(frozen=True, slots=True)
class Proofs:
    """How the looks of a benchmark share ``UNPROVEN``, the error of proofs that a metric is no worse.

    What they may spend grows with the share of the time that is over (Lan and DeMets 1983, linear spending).
    """

    spent: float = 0.0
    share: float = 0.0  # of the time, at the last look that could prove
    level: float = UNPROVEN  # one-sided, of the bound at this look
    # Two-sided, of the interval at this look. A look ends the measuring where launches lie apart by much, or seem to
    # scatter little: by all looks together an interval of a single look would miss the truth more often.
    interval: float = UNPROVEN
    proves: bool = False  # whether this look may prove

    def at_interim(self, share: float, *, last: bool, over: float | None = None) -> Proofs:
        """Those of a look that may have spent this share of the error, with all looks before it.

        ``over``: the share of its interval, if that is another one.
        """
        most = UNPROVEN * (OF_LOOK if self.share else 1.0)
        found = replace(self, level=most * (share or 1.0), interval=most * ((share if over is None else over) or 1.0))
        if not NEXT_PROOF * self.share <= share > 0 and not (last and self.share < share):
            return replace(found, proves=False)
        return replace(found, spent=UNPROVEN * share, share=share, proves=True)


UNSPENT = Proofs()
ONE_LOOK = Proofs(proves=True)


def highest(change: Change, better: Better, level: float = UNPROVEN) -> float | None:
    """The one-sided bound of the worsening, on the scale of analysis; None if the scatter is unknown."""
    half = half_width(change, 2 * level)
    return None if half is None else worsening(change, better) + half


def limit(change: Change, tolerance: float) -> float:
    """A tolerance on the scale of analysis."""
    return math.log1p(tolerance) if change.logarithmic else tolerance


def hides_long_steps(whole: float | None, resolution: float | None, margin: float) -> bool:
    """Returns whether all steps together are worse by more than ``ok`` and ``unchanged`` rule out."""
    return whole is not None and whole > max(margin, resolution or 0.0)


def is_gross(change: Change, base: Series, gross: float) -> bool:
    """Whether the whole 99 % interval of a change from ``base`` is worse than ``gross``, a fraction of its value."""
    half = half_width(change, GROSS_ALPHA)
    beyond = gross * abs(base.value) if base.scale == "difference" else limit(change, gross)
    return half is not None and worsening(change, base.better) - half > beyond
