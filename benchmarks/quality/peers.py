"""The rules of other tools: one launch against one launch, each with all of its steps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Steps: TypeAlias = "Sequence[float]"
Rule: TypeAlias = "Callable[[Steps, Steps], bool]"

SMALL = 0.05
SMALLER = 0.002


def slower_by(statistic: Callable[[Steps], float], factor: float) -> Rule:
    """Whether a statistic of the new steps is more than ``factor`` times that of the old ones."""
    return lambda new, base: statistic(new) > factor * statistic(base)


def t_test(new: Steps, base: Steps) -> bool:
    """Whether the mean is higher, with a two-sided p below 0.05: Welch's test, steps taken as independent."""
    from scipy.stats import ttest_ind

    return statistics.fmean(new) > statistics.fmean(base) and bool(ttest_ind(new, base, equal_var=False).pvalue < SMALL)


def mann_whitney(level: float) -> Rule:
    """Whether the median is higher, with a two-sided p of the Mann-Whitney test below ``level``."""

    def rule(new: Steps, base: Steps) -> bool:
        from scipy.stats import mannwhitneyu

        return statistics.median(new) > statistics.median(base) and bool(mannwhitneyu(new, base).pvalue < level)

    return rule


def both(one: Rule, other: Rule) -> Rule:
    """Whether both rules say so."""
    return lambda new, base: one(new, base) and other(new, base)


RULES: Mapping[str, Rule] = {
    "mean:5% (pytest-benchmark)": slower_by(statistics.fmean, 1.05),
    "min:5% (pytest-benchmark)": slower_by(min, 1.05),
    "median + 5%": slower_by(statistics.median, 1.05),
    "t-test p<0.05": t_test,
    "Mann-Whitney p<0.05": mann_whitney(SMALL),
    "Mann-Whitney p<0.002, 1.1x (asv)": both(mann_whitney(SMALLER), slower_by(statistics.median, 1.1)),
}
