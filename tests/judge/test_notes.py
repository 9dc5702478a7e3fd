"""What is said of a metric where its numbers do not say it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpperf.judge.benchmark import compare
from pytest_ddpperf.judge.decision import DecisionContext
from pytest_ddpperf.metrics.counted import counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Spread
from pytest_ddpperf.records.results import Comparison, Noise
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import words_of_note
from pytest_ddpperf.reports.phrases import findings
from tests.judge.made_up import STEADY, beside, found, judged, measured, series


def test_an_improvement_says_that_the_baseline_is_stale() -> None:
    one = judged(measured(series("step_time", STEADY, factor=0.5)), found(series("step_time", STEADY)))["step_time"]

    assert words_of_note(one.note) == "better than the baseline by more than the tolerance: the baseline is stale"


def inconclusive(
    new: Sequence[float], base: Sequence[float], tolerance: float = 0.05, *, noise: Noise | None = None
) -> Comparison:
    stored = replace(found(series("step_time", base)), noise=noise)
    one = judged(measured(series("step_time", new)), stored, tolerance=tolerance)["step_time"]
    assert one.verdict is Verdict.INCONCLUSIVE
    return one


def test_what_could_not_be_decided_says_what_it_takes() -> None:
    one = inconclusive([0.95, 1.05, 1.0, 0.955, 1.045, 1.0], STEADY, tolerance=0.03)

    assert one.mde is not None
    told = re.fullmatch(r"about (\d+) launches would decide it", words_of_note(one.note))
    assert told is not None

    def note(*, last: bool) -> str:
        rules = DecisionContext(
            tolerance=0.03, alpha=0.0025, last=last, max_time_for=lambda launches: 30.1 + 2 * launches
        )
        new, base = measured(one.series), found(series("step_time", STEADY))
        return words_of_note(compare("test_x.py::test_a", new, base, rules)["step_time"].note)

    assert note(last=False) == words_of_note(one.note)  # there is time yet
    more = re.fullmatch(r"about (\d+) launches \(max_time (\d+) s\) would decide it", note(last=True))
    assert more is not None
    assert int(more[2]) == 31 + 2 * (int(more[1]) - 6)  # six are there
    few = inconclusive([0.95, 1.05, 1.0, 0.955, 1.045], STEADY, tolerance=0.03)
    assert re.fullmatch(r"about \d+ launches would decide it, as far as 5 can tell", words_of_note(few.note))


def test_what_only_launches_after_the_verdict_tell_says_so() -> None:
    made = tuple(
        Launch(
            round=i,
            ranks=(
                RankLaunch(
                    rank=0, step_times=(1.0,), memory={}, loss=None, samples_per_step=None, tokens_per_step=None
                ),
            ),
            seconds=1.0,
        )
        for i in range(6)
    )
    few = [0.92, 1.08, 1.0, 0.93]
    new = replace(measured(series("phase_forward", few), series("memory_growth", few, factor=3e6)), launches=made)
    base = beside(series("phase_forward", [1.0, 0.95, 1.05, 1.0]), series("memory_growth", [3e6, 2.85e6, 3.15e6, 3e6]))
    phase, growth = (judged(new, base, tolerance=0.03)[metric] for metric in ("phase_forward", "memory_growth"))
    assert (phase.verdict, growth.verdict) == (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE)
    assert (words_of_note(phase.note), words_of_note(growth.note)) == ("told by 4 launches after the verdict",) * 2


def test_what_more_launches_cannot_decide_says_so() -> None:
    """The spread between runs alone is 0.01 * sqrt(2) * 1.645 = 2.3 %, more than 5/3 of a tolerance of 1 %."""
    note = (
        "more launches would not decide it; a wider tolerance, a quieter machine, a baseline of more launches or "
        "--ddpperf-against might"
    )
    assert words_of_note(inconclusive(STEADY, STEADY, tolerance=0.01).note) == note


def test_nor_can_they_decide_where_launches_scatter_so_much_that_runs_do_too() -> None:
    """Launches of 0.88 to 1.12, by 10 % or so, of which runs are taken to deviate by a third, whatever was calibrated.

    1.645 times that is 6 %, more than 5/3 of 3 %.
    """
    wild, told = (
        [0.88, 1.12, 1.0, 0.89, 1.11, 1.0],
        Noise(between_runs=Spread(sd=0.001, df=4), floor=0.01, origin="calibrated on 2026-01-12"),
    )
    for noise in (None, told):
        one = inconclusive(wild, STEADY, tolerance=0.03, noise=noise)
        assert words_of_note(one.note).startswith("more launches would not decide it; ")


def test_what_only_thousands_of_launches_would_decide_says_what_else_might() -> None:
    """Launches of half and of double the time, which even out, and a tolerance of 3 %."""
    wild = [0.5, 2.0, 0.5, 2.0, 0.5, 2.0]
    one = judged(measured(series("step_time", wild)), beside(series("step_time", wild[::-1])), tolerance=0.03)
    fact = "no practicable number of launches would decide it"
    assert words_of_note(one["step_time"].note) == f"{fact}; a wider tolerance or a quieter machine might"
    # Runs do not deviate with their launches in it; what is slowest of these hardly counts.
    tail = series("step_time_tail", [0.793, 0.795] * 50)
    stored_one = judged(measured(replace(tail, samples=tuple(wild))), found(tail))["step_time_tail"]
    assert words_of_note(stored_one.note) == f"{fact}; a wider tolerance, a quieter machine or --ddpperf-against might"


def test_single_launches_tell_nothing_about_scatter() -> None:
    one = inconclusive([2.0], [1.0])

    assert (one.change, one.change_interval, one.mde) == (1.0, None, None)
    assert words_of_note(one.note) == "one launch on either side tells nothing about scatter; measure at least two"


def test_what_is_better_than_the_other_revision_speaks_of_no_baseline() -> None:
    """In one metric, and in none worse: improved; beside a baseline it would take all of them."""
    now, then = (
        Counts(totals={"collective_calls": calls, "flops": 10.0}, details={}, unstable={}) for calls in (1.0, 2.0)
    )
    new = replace(measured(), counts=now, series=counted_series(now))
    result = judged(new, beside(then=then))
    assert result.verdict is Verdict.IMPROVED
    assert findings(result) == (
        "collective_calls is 1 per step, 2 in the other revision: collective_calls 2 -> 1 calls per step (-1)",
    )
    faster = judged(measured(series("step_time", STEADY, factor=0.8)), beside(series("step_time", STEADY)))
    assert (faster.verdict, words_of_note(faster["step_time"].note)) == (Verdict.IMPROVED, "")
