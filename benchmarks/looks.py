"""What looking after every launch costs: how often chance passes a test at any of many looks, by simulation.

    python benchmarks/looks.py

Launches with normal scatter and no change are looked at after each one, from the sixth to the 48th, as verdicts do:
trimmed means, Student's interval, side by side and beside a stored baseline of 45 launches. Printed is, for each level
that all looks together should keep, how often they pass it when each look tests at the part of the level that
``stats/verdict.py`` gives it, the last one at most of it: 1.0 keeps it exactly, less is on the safe side. Goal: at most
1.2, for chance.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from numpy.typing import NDArray

from pytest_ddpperf.stats.centers import CUTS, Trim, center_of
from pytest_ddpperf.stats.verdict import LAST_SHARE, LOOKS_IN_ROUNDS, SEPARATE_LOOKS

FIRST, LAST, BASELINE = 6, 48, 45
LEVELS = (2e-3, 5e-4, 1.5e-4)  # one-sided: of one metric of few, in a small and in a large suite
CHUNK = 20_000
GOAL = 1.2

Array = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400_000, help="simulated ones (default: %(default)s)")
    options = parser.parse_args()
    chunks = max(1, options.runs // CHUNK)
    print(f"{chunks * CHUNK} runs, looked at after each of {FIRST} to {LAST} launches\n")
    kept = [_report(name, chunks, in_rounds=name == "side by side") for name in ("side by side", "stored baseline")]
    sys.exit(0 if all(kept) else 1)


def _report(name: str, chunks: int, *, in_rounds: bool) -> bool:
    looks = LOOKS_IN_ROUNDS if in_rounds else SEPARATE_LOOKS
    rng = np.random.default_rng(20260112)
    passed = dict.fromkeys(LEVELS, 0)
    for _ in range(chunks):
        early, last = smallest_p(rng, in_rounds=in_rounds)
        for level in LEVELS:
            passed[level] += int(((early < (1 - LAST_SHARE) * level / looks) | (last < LAST_SHARE * level)).sum())
    ratios = {level: found / chunks / CHUNK / level for level, found in passed.items()}
    for level, ratio in ratios.items():
        verdict = "reached" if ratio <= GOAL else "missed"
        shares = f"the last look at {LAST_SHARE:.0%} of {level:g}, each before it at 1/{looks} of the rest"
        print(f"{name}, {shares}: {ratio:.2f} times the level: {verdict}")
    return all(ratio <= GOAL for ratio in ratios.values())


def smallest_p(rng: np.random.Generator, *, in_rounds: bool) -> tuple[Array, Array]:
    """Of each of many runs, the smallest one-sided p value of all looks before the last, and that of the last."""
    from scipy.stats import t

    launches = rng.normal(size=(CHUNK, LAST))
    base = (np.zeros(CHUNK), np.zeros(CHUNK), np.inf)
    if not in_rounds:
        base = centers(rng.normal(size=(CHUNK, BASELINE)), "high")
    least = looked = np.ones(CHUNK)
    for n in range(FIRST, LAST + 1):
        least = np.minimum(least, looked)
        mean, variance, df = centers(launches[:, :n], "both" if in_rounds else "high")
        looked = t.sf((mean - base[0]) / np.sqrt(variance + base[1]), min(df, base[2]))
    return least, looked


def centers(samples: Array, trim: Trim) -> tuple[Array, Array, float]:
    """``center_of`` of each row: means, squared standard errors, degrees of freedom; the first row is checked."""
    low, high = CUTS[trim]
    n = samples.shape[1]
    begin, end = n * low, n * (1 - high)
    weights = np.clip(np.minimum(np.arange(n) + 1, end) - np.maximum(np.arange(n), begin), 0, None)
    inside = np.nonzero(weights > 1e-9)[0]
    ordered = np.sort(samples, axis=1)
    kept = end - begin
    means = (ordered * weights).sum(axis=1) / kept
    winsorised = np.clip(ordered, ordered[:, inside[:1]], ordered[:, inside[-1:]])
    squares = ((winsorised - winsorised.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    one = center_of([float(sample) for sample in samples[0]], trim)
    assert one.variance is not None  # noqa: S101  a check of this script
    assert np.allclose([means[0], squares[0] / (kept * (kept - 1)), kept - 1], [one.mean, one.variance, one.df])  # noqa: S101
    return means, squares / (kept * (kept - 1)), kept - 1


if __name__ == "__main__":
    main()
