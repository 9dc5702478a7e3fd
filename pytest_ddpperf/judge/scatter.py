"""What the launches of a metric are expected to scatter by, before they are looked at; and how many were worse."""

from __future__ import annotations

import math
import statistics

from pytest_ddpperf.metrics.control import controlled
from pytest_ddpperf.records.measurement import Series, Spread
from pytest_ddpperf.stats.blocks import CERTAINTY, OWN_IN_TURNS, Expected, expected, paired_blocks
from pytest_ddpperf.stats.centers import parted
from pytest_ddpperf.stats.spreads import joined, pooled

CERTAIN = 100.0  # degrees of freedom of a scatter that was measured thousands of times, for a launch that is alone


def expected_alone(
    series: Series, base: Series, learned: Spread | None = None, base_runs: tuple[int, ...] = ()
) -> Expected | None:
    """What launches of a separate run are expected to scatter by; None where nothing is known.

    Args:
        series: of the candidate.
        base: of the baseline, whose launches tell as well.
        learned: of launches of other benchmarks that ran alone; None where nothing is known.
        base_runs: how many of the baseline's launches belong to each of its runs; empty for one run.
    """
    if series.rules.usual_scatter is not None and series.scale != "ratio" and len(series.samples) == 1:
        return Expected(series.rules.usual_scatter**2, CERTAIN)
    if not series.within:
        return None
    if series.scale != "ratio":
        return expected(series.within, series.own)
    shown = pooled(parted(base.samples, base_runs or (len(base.samples),)))
    if learned is not None and series.rules.shared_scatter:
        shown = joined([shown, learned])
    return expected(series.within, series.own, shown)


def expected_of_pairs(series: Series, base: Series, *, turns: bool) -> Expected | None:
    """What the differences of launches of a round are expected to scatter by; of interleaved ones by their blocks."""
    usual, alone = series.rules.usual_scatter, len(series.samples) == 1
    if usual is not None and alone != (series.scale == "ratio"):
        return Expected(2 * usual**2, CERTAIN if alone else CERTAINTY)
    if series.scale != "ratio":  # steps of diagnoses, which did not alternate with the other side's
        new, old = (expected(side.within, side.own) for side in (series, base))
        return None if new is None or old is None else Expected(new.variance + old.variance, min(new.df, old.df))
    moved = paired_blocks(series.within, base.within)
    return expected(moved, min(series.own, OWN_IN_TURNS) if turns else math.sqrt(2) * series.own)


def worse_in(series: Series, base: Series, *, paired: bool, quotient: bool) -> int | None:
    """In how many launches it was worse: than in the same round, else than the base's median; None of fewer than 2.

    ``quotient``: whether their quotients by the control step are compared.
    """
    if quotient:
        series, base = controlled(series), controlled(base)
    new, old = series.samples, base.samples
    if len(new) < 2 or not old:  # noqa: PLR2004
        return None
    others = old if paired and len(old) == len(new) else (statistics.median(old),) * len(new)
    sign = 1 if series.better == "lower" else -1
    return sum(sign * one > sign * other for one, other in zip(new, others, strict=True))
