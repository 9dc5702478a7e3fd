"""What looking after every launch costs: how often chance passes a test at any of many looks, by simulation.

    python benchmarks/looks.py

Launches with normal scatter and no change are looked at after each one, from the sixth to the 48th, as verdicts do:
Huber's estimate side by side, means beside a stored baseline of 45 launches, with their t intervals. Printed
is, for each level that all looks together should keep, how often they pass it when each look tests at the part of the
level that ``judge/decision.py`` gives it, the last one at most of it: 1.0 keeps it exactly, less is on the safe side.
Goal: at most 1.2, for chance.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality

from benchmarks.quality.verdicts import LAST_SHARE, PAIRED_LOOKS, SEPARATE_LOOKS
from pytest_ddpperf.stats.centers import CAP, CAPPED_VARIANCE, center_of

FIRST, LAST, BASELINE = 6, 48, 45
LEVELS = (2e-3, 5e-4, 1.5e-4)  # one-sided: of one metric of few, in a small and in a large suite
CHUNK = 20_000
ITERATIONS = 12  # of Huber's estimate: many more than most samples take
GOAL = 1.2

Array = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400_000, help="simulated ones (default: %(default)s)")
    options = parser.parse_args()
    chunks = max(1, options.runs // CHUNK)
    print(f"{chunks * CHUNK} runs, looked at after each of {FIRST} to {LAST} launches\n")
    kept = [_report(name, chunks, paired_rounds=name == "side by side") for name in ("side by side", "stored baseline")]
    sys.exit(0 if all(kept) else 1)


def _report(name: str, chunks: int, *, paired_rounds: bool) -> bool:
    looks = PAIRED_LOOKS if paired_rounds else SEPARATE_LOOKS
    rng = np.random.default_rng(20260112)
    passed = dict.fromkeys(LEVELS, 0)
    for _ in range(chunks):
        early, last = smallest_p(rng, paired_rounds=paired_rounds)
        for level in LEVELS:
            passed[level] += int(((early < (1 - LAST_SHARE) * level / looks) | (last < LAST_SHARE * level)).sum())
    ratios = {level: found / chunks / CHUNK / level for level, found in passed.items()}
    for level, ratio in ratios.items():
        verdict = "reached" if ratio <= GOAL else "missed"
        shares = f"the last look at {LAST_SHARE:.0%} of {level:g}, each before it at 1/{looks} of the rest"
        print(f"{name}, {shares}: {ratio:.2f} times the level: {verdict}")
    return all(ratio <= GOAL for ratio in ratios.values())


def smallest_p(rng: np.random.Generator, *, paired_rounds: bool) -> tuple[Array, Array]:
    """Of each of many runs, the smallest one-sided p value of all looks before the last, and that of the last."""
    launches = rng.normal(size=(CHUNK, LAST))
    base = (np.zeros(CHUNK), np.zeros(CHUNK), np.full(CHUNK, np.inf))
    if not paired_rounds:
        base = centers(rng.normal(size=(CHUNK, BASELINE)), robust=False)
    least = looked = np.ones(CHUNK)
    for n in range(FIRST, LAST + 1):
        least = np.minimum(least, looked)
        mean, variance, df = centers(launches[:, :n], robust=paired_rounds)
        looked = t.sf((mean - base[0]) / np.sqrt(variance + base[1]), np.minimum(df, base[2]))
    return least, looked


def centers(samples: Array, *, robust: bool) -> tuple[Array, Array, Array]:
    """``center_of`` of each row: means, squared standard errors, degrees of freedom; the first row is checked."""
    found = capped(samples) if robust else plain(samples)
    first = center_of([float(sample) for sample in samples[0]], robust=robust)
    assert first.variance is not None  # noqa: S101  a check of this script
    assert np.allclose([column[0] for column in found], [first.mean, first.variance, first.df])  # noqa: S101
    return found


def plain(samples: Array) -> tuple[Array, Array, Array]:
    """Means with Student's error."""
    n = samples.shape[1]
    return samples.mean(axis=1), samples.var(axis=1, ddof=1) / n, np.full(len(samples), n - 1.0)


def capped(samples: Array) -> tuple[Array, Array, Array]:
    """Huber's M-estimate, for all rows at once."""
    n = samples.shape[1]
    mean = samples.mean(axis=1, keepdims=True)
    deviations = samples - mean
    for _ in range(ITERATIONS):
        reach = CAP * np.sqrt((deviations**2).sum(axis=1, keepdims=True) / (n - 1) / CAPPED_VARIANCE)
        # Where as many samples stay beyond the reach, its value follows in closed form.
        is_inside = abs(samples - mean) <= reach
        inside = is_inside.sum(axis=1, keepdims=True)
        among = np.where(is_inside, samples, 0).sum(axis=1, keepdims=True) / inside
        squares = np.where(is_inside, samples - among, 0)
        skew = ((samples > mean + reach).sum(axis=1) - (samples < mean - reach).sum(axis=1))[:, None]
        left = (n - 1) * CAPPED_VARIANCE / CAP**2 - (n - inside) - skew**2 / inside
        has_solution = left > 0
        reach = np.where(
            has_solution, np.sqrt((squares**2).sum(axis=1, keepdims=True) / np.where(has_solution, left, 1)), reach
        )
        mean = np.where(has_solution, among + skew * reach / inside, mean)
        deviations = np.clip(samples - mean, -reach, reach)
        mean = mean + deviations.mean(axis=1, keepdims=True)
        deviations = np.clip(samples - mean, -reach, reach)
    share = (abs(samples - mean) <= reach).mean(axis=1)
    variance = CAPPED_VARIANCE * ((1 + (1 - share) / share / n) * reach[:, 0] / CAP / share) ** 2 / n
    return mean[:, 0], variance, np.maximum(n * share - 1, 1)


if __name__ == "__main__":
    main()
