"""The worked example of the page on formulas: recomputed from the JSON by numpy and scipy alone, as a reader would."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import stdtrit

from pytest_ddpperf.judge.decision import PAIRED_TOLERANCE, TOLERANCE
from pytest_ddpperf.judge.detection import (
    EQUIVALENCE_MARGIN,
    GROSS_ALPHA,
    LAST_SHARE,
    PAIRED_LOOKS,
    SUSPICIOUS,
    UNPROVEN,
)
from pytest_ddpperf.judge.sequential import ALPHA, PAIRED_ALPHA, PAIRED_SUITE_ALPHA
from pytest_ddpperf.metrics.table import rules_of
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.launches import CAP, CAPPED_VARIANCE, CERTAINTY, DENIED, OWN_ALONE, OWN_IN_TURNS

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "internals" / "formulas.md").read_text()
EXAMPLE = PAGE.partition("## Can I recompute one?")[2]
RESULT: dict[str, Any] = json.loads((DOCS / "internals" / "worked_example.json").read_text())["results"][0]
METRIC: dict[str, Any] = RESULT["metrics"]["step_time"]

MAX_TIME = 10.0  # seconds, of the command line
LAUNCHES = 2  # of each side, before the suspicion
DIFFERENCES = np.log(np.array(METRIC["samples"]) / np.array(METRIC["baseline_samples"]))
ROUNDS = len(DIFFERENCES)
MEAN = DIFFERENCES.mean()
ERROR = DIFFERENCES.std(ddof=1) / math.sqrt(ROUNDS)
LEVEL = 0.007 * 3 / 4 * 0.7  # two-sided: the step time has three quarters of it, and a last look 70 % of that


def t(p: float, df: int = ROUNDS - 1) -> float:
    """The quantile of Student's distribution."""
    return float(stdtrit(df, p))


def percent(shift: float) -> str:
    """A difference of logarithms as a change: +36.6 %."""
    return f"{100 * math.expm1(shift):+.1f} %"


def said(text: str) -> bool:
    """Whether the example says this, however its lines are broken."""
    return text in " ".join(EXAMPLE.split())


def test_the_value_is_the_mean_of_all_steps() -> None:
    steps = np.array(RESULT["step_times"])
    assert steps.shape == (ROUNDS, RESULT["plan"]["steps"])
    assert METRIC["samples"] == pytest.approx(steps.mean(axis=1))
    assert METRIC["value"] == pytest.approx(steps.mean())
    assert METRIC["baseline"] == pytest.approx(np.mean(METRIC["baseline_samples"]))
    assert said(f"`value`: {1000 * steps.mean():.1f} ms, the mean of the {steps.size} `step_times`")


def test_the_page_shows_the_samples_and_their_differences() -> None:
    rows = zip(METRIC["samples"], METRIC["baseline_samples"], DIFFERENCES, strict=True)
    for number, (new, base, difference) in enumerate(rows, start=1):
        assert said(f"| {number} | {1000 * new:.1f} | {1000 * base:.1f} | {difference:.4f} |")


def test_the_change_is_the_mean_of_the_differences() -> None:
    deviation = DIFFERENCES.std(ddof=1)
    assert np.abs(DIFFERENCES - MEAN).max() < 1.5 * deviation  # so that none is capped
    assert METRIC["change"] == pytest.approx(math.expm1(MEAN))
    assert METRIC["paired"]
    assert said(f"$\\delta$ = {MEAN:.4f}, so `change` is {percent(MEAN)}. $s_d$ = {deviation:.4f}, and no $d_i$ lies")


def test_the_standard_error_agrees_with_a_t_test() -> None:
    assert METRIC["standard_error"] == pytest.approx(ERROR)
    assert METRIC["df"] == ROUNDS - 1  # with one block a launch nothing is expected of the scatter
    assert said(f"$SE$ = {DIFFERENCES.std(ddof=1):.4f}/2 = {ERROR:.4f}, {ROUNDS - 1} degrees of freedom")


def test_interval_and_bound_have_the_level_of_the_last_interim_analysis() -> None:
    assert RESULT["seconds"] > MAX_TIME
    half, reach = t(0.975) * ERROR, t(0.95) * ERROR
    interval = METRIC["change_interval"]
    assert (interval["low"], interval["high"]) == pytest.approx((math.expm1(MEAN - half), math.expm1(MEAN + half)))
    assert METRIC["bound"] == pytest.approx(math.expm1(MEAN + reach))
    assert said(f"`seconds` is {RESULT['seconds']:.1f}")
    assert said(f"The interval, {MEAN:.4f} ± {t(0.975):.3f}·{ERROR:.4f}, is {percent(MEAN - half)} to")
    assert said(
        f"{percent(MEAN + half)}. The bound, {MEAN:.4f} + {t(0.95):.3f}·{ERROR:.4f}, is {percent(MEAN + reach)}"
    )


def test_the_verdict_takes_both_tests() -> None:
    accepted, key = math.log1p(METRIC["tolerance"]), t(1 - LEVEL / 2) * ERROR
    assert max(accepted, key) < MEAN
    for rounds in (DIFFERENCES[:LAUNCHES], DIFFERENCES[LAUNCHES:]):  # before and after the suspicion
        again = t(0.9, LAUNCHES - 1) * rounds.std(ddof=1) / math.sqrt(LAUNCHES)
        assert max(accepted, again) < rounds.mean()
    assert METRIC["verdict"] == RESULT["verdict"] == "regressed"
    assert said(
        f"= {100 * LEVEL:.4f} %. $t_{{1-\\alpha/2}}SE$ = {t(1 - LEVEL / 2):.3f}·{ERROR:.4f} = {key:.4f} and $L$"
    )
    assert said(f"= {accepted:.4f} are less than {MEAN:.4f}")
    fresh = DIFFERENCES[LAUNCHES:]
    error = fresh.std(ddof=1) / math.sqrt(2)
    assert said(
        f"$w$ = {fresh.mean():.4f}, $t_{{0.9}}SE$ = {t(0.9, 1):.3f}·{error:.4f} = {t(0.9, 1) * error:.4f}. So it is "
        "**regressed**"
    )


def test_the_detectable_effect_is_found_in_95_of_100_cases() -> None:
    key, reach = t(1 - LEVEL / 2) * ERROR, t(0.95) * ERROR
    assert METRIC["mde"] == pytest.approx(math.expm1(key + reach))
    assert said(f"MDE: {key:.4f} + {reach:.4f} = {key + reach:.4f}, or {100 * math.expm1(key + reach):.1f} %")


def test_the_figures_of_the_page_agree_with_the_code() -> None:
    step, cpu = rules_of("step_time").weight, rules_of("cpu_time").weight
    assert (PAIRED_ALPHA * step / (step + cpu) * LAST_SHARE) == pytest.approx(LEVEL)
    assert (PAIRED_SUITE_ALPHA, PAIRED_LOOKS, ALPHA, GROSS_ALPHA) == (0.035, 16, 0.01, 0.01)
    assert (TOLERANCE, PAIRED_TOLERANCE, UNPROVEN, SUSPICIOUS) == (0.03, 0.015, 0.05, 0.1)
    assert pytest.approx(5 / 3) == EQUIVALENCE_MARGIN
    assert (CERTAINTY, DENIED, OWN_IN_TURNS) == (4, 2, 0.015)
    assert math.sqrt(2) * OWN_ALONE == pytest.approx(0.042, abs=5e-4)
    assert CAP / math.sqrt(CAPPED_VARIANCE) == pytest.approx(1.5, abs=0.01)
    assert Settings().gross == 0.5


@pytest.mark.parametrize(("page", "words"), [("how-it-decides.md", 1200), ("internals/formulas.md", 700)])
def test_the_pages_on_verdicts_are_short(page: str, words: int) -> None:
    assert len((DOCS / page).read_text().split()) <= words
