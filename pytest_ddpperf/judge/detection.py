"""Tests whether a metric looks worse, looks better or is proven no worse, and computes the detectable effect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytest_ddpperf.judge.sequential import Key
from pytest_ddpperf.records.measurement import Better, Series
from pytest_ddpperf.stats.intervals import Change, from_log, half_width, t_quantile

POWER = 0.95
UNPROVEN = 0.05  # one-sided: how often any look may call a worsening just beyond the margin ``unchanged``
NEXT_PROOF = 2.0
"""The smallest factor by which the elapsed time grows between two interim verdicts that may prove a metric no worse.

Verdicts in quick succession see nearly the same launches, and each uses up a part of the error ``UNPROVEN``.
"""
OF_LOOK = 0.6
"""The error probability of each proof after the first, as a share of the error probability permitted by then.

The first proof may have all of it. Later proofs see many of the same launches. With this share, at most 5 % of
benchmarks get a wrong proof if launches are evenly spaced, and up to 6.5 % if nearly all launches are late: by
simulation of independent launches (tests/judge/test_judge.py); fewer if launches share a baseline's error.
"""

EQUIVALENCE_MARGIN = 5 / 3
"""The worsening that ``unchanged`` excludes, as a multiple of the tolerance (a non-inferiority margin).

A worsening between tolerance and margin may get any verdict, as in the zone of indifference of a sequential test (Wald
1945). To exclude the tolerance itself needs several times the launches, and left a third of the unchanged benchmarks
undecided. With a margin of twice the tolerance, slowdowns of this size were proven unchanged too often in paired runs
whose launches scatter by 1 %.
"""
SUSPICIOUS = 0.1  # one-sided: how often an unchanged metric may look worse (or better) at a look, and get launches

GROSS_ALPHA = 0.01  # two-sided error of the interval that lies wholly beyond ``gross`` if a slowdown is gross

LAST_SHARE = 0.7  # of the significance level, for the last look, which sees most launches

SEPARATE_LOOKS, PAIRED_LOOKS = 2, 16
"""Divisors: each interim verdict before the last one gets the level that the last one leaves, divided by this.

The more interim verdicts (after 6 to 48 launches), the likelier at least one is wrong. With these divisors, all
verdicts together keep their level (0.015 to 0.2 %, one-sided) within a factor of 1.2, by simulation. Comparisons with
a stored baseline have the smaller one, because all verdicts share the baseline's error.
"""


def looks_worse(change: Change, *, better: Better, tolerance: float) -> bool:
    """Returns whether a change looks worse, so that new launches have to confirm it; a weaker test than ``decide``."""
    half = half_width(change, 2 * SUSPICIOUS)
    return half is not None and worsening(change, better) > max(half, limit(change, tolerance))


def looks_better(change: Change, *, better: Better, tolerance: float) -> bool:
    """Returns whether a change looks better: the mirror image of ``looks_worse``."""
    return looks_worse(change, better="higher" if better == "lower" else "lower", tolerance=tolerance)


def mde(change: Change, *, alpha: float, tolerance: float = 0.0) -> float | None:
    """Returns the minimal detectable effect: the worsening that a complete run finds with probability ``POWER``.

    A significant change needs ``(t(1 - alpha/2) + t(POWER)) * standard_error`` (Bloom 1995, "Minimum detectable
    effects"), and an estimate above the tolerance needs ``tolerance + t(POWER) * standard_error``. The result is the
    larger one of these two numbers, in the unit of ``tolerance``; None if the scatter is unknown.
    """
    half = half_width(change, level_of_look(change, alpha, last=True))
    if half is None or change.standard_error is None:
        return None
    reach = t_quantile(POWER, change.df) * change.standard_error
    smallest = max(half, limit(change, tolerance)) + reach
    return from_log(smallest) if change.logarithmic else smallest


def level_of_look(change: Change, alpha: float, *, last: bool) -> float:
    """Returns the two-sided significance level of one interim verdict; the ``last`` one gets most of ``alpha``."""
    if last:
        return LAST_SHARE * alpha
    return (1 - LAST_SHARE) * alpha / (PAIRED_LOOKS if change.paired_rounds else SEPARATE_LOOKS)


def worsening(change: Change, better: Better) -> float:
    """Returns ``change.shift`` (for ratios, log(new / base)), negated if higher is better. A worsening is positive."""
    return change.shift if better == "lower" else -change.shift


@dataclass(frozen=True, slots=True)
class Proofs:
    """The error probability that interim verdicts on a benchmark have used to prove that metrics are no worse.

    An interim verdict sees the launches so far. All interim verdicts together may use ``UNPROVEN`` (5 %). At any
    moment, they may have used a part of the 5 % that grows linearly with the elapsed time (Lan and DeMets 1983).
    """

    share: float = 0.0  # of the time, at the last look that could prove
    level: float = UNPROVEN  # one-sided, of the bound at this look
    # Two-sided, of the interval at this look; smaller at early looks: a run stops early if its launches happen to show
    # a large change or little scatter, and the usual interval would then miss the true change too often.
    interval: float = UNPROVEN
    proves: bool = False  # whether this look may prove

    def at_interim(self, share: float, *, last: bool, over: float | None = None) -> Proofs:
        """Returns the ``Proofs`` at the next interim verdict; ``last``: whether no other verdict follows.

        All verdicts up to this one may use the fraction ``share`` of the error probability ``UNPROVEN`` (5 %). For the
        confidence intervals in reports, ``over`` replaces ``share`` (None: ``share`` applies).
        """
        most = UNPROVEN * (OF_LOOK if self.share else 1.0)
        found = replace(self, level=most * (share or 1.0), interval=most * ((share if over is None else over) or 1.0))
        if not NEXT_PROOF * self.share <= share > 0 and not (last and self.share < share):
            return replace(found, proves=False)
        return replace(found, share=share, proves=True)


UNSPENT = Proofs()
ONE_LOOK = Proofs(proves=True)


def upper_bound(change: Change, better: Better, level: float = UNPROVEN) -> float | None:
    """Returns the upper bound of a worsening on the scale of ``change.shift`` (one-sided error: ``level``), or None."""
    half = half_width(change, 2 * level)
    return None if half is None else worsening(change, better) + half


def limit(change: Change, tolerance: float) -> float:
    """Converts a tolerance to the scale of ``change.shift``, which may be logarithmic."""
    return math.log1p(tolerance) if change.logarithmic else tolerance


def is_gross(change: Change, base: Series, gross: float) -> bool:
    """Returns whether the whole 99 % interval of a change from ``base`` is worse than ``gross``, a fraction."""
    half = half_width(change, GROSS_ALPHA)
    beyond = gross * abs(base.value) if base.scale == "difference" else limit(change, gross)
    return half is not None and worsening(change, base.better) - half > beyond


class AlphaLedger:
    """A record of the error probability that interim verdicts have used, for each benchmark of a call."""

    def __init__(self) -> None:
        self._launches: Mapping[Key, int] = {}  # of each benchmark at this look
        self._now: dict[Key, Proofs] = {}
        self._committed: dict[Key, tuple[int, Proofs]] = {}  # launches and proofs at the last look that counts
        self._before = self._committed  # ``_committed`` when the present look began

    def __getitem__(self, key: Key) -> Proofs:
        """Returns a benchmark's ``Proofs`` at the current interim verdict; before the first verdict, ``UNSPENT``."""
        return self._now.get(key, UNSPENT)

    def begin(self, launches: Mapping[Key, int], share: float, *, last: bool) -> None:
        """Begins an interim verdict; if there were no new launches, this verdict replaces the previous one."""
        if launches == self._launches:
            self._committed = self._before
        self._before, self._launches = self._committed, launches
        self.spend(share, last=last)

    def spend(self, share: float, *, last: bool, over: float | None = None) -> None:
        """Applies ``Proofs.at_interim`` to each benchmark that has new launches or, if ``last``, to all benchmarks."""
        for key, launches in self._launches.items():
            of_launches, spent = self._before.get(key, (0, UNSPENT))
            now = spent.at_interim(share, last=last, over=over)
            more = launches > of_launches or (last and now.proves and now.level >= spent.level)
            self._now[key] = now if more else spent

    def commit(self) -> None:
        """Records that the current verdict has used its error probability; later verdicts may use only the rest."""
        self._committed = {key: (launches, self._now[key]) for key, launches in self._launches.items()}

    def keep(self) -> None:
        """Prevents ``begin`` from refunding used error probability when the test runs again without new launches."""
        self._before = self._committed
