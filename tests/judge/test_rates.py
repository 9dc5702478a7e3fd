"""Counts of what comes in some steps only: how often decides, and not which steps were looked at."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Literal
from unittest.mock import ANY

import pytest

from pytest_ddpperf.judge.counts import change_of
from pytest_ddpperf.judge.decision import decide_count
from pytest_ddpperf.records.counts import Counts, steps_to_tell
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.records.rhythm import components_of, rhythm_of, rhythm_of_all
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.reports.phrases import findings
from tests.judge.test_counts import counted
from tests.judge.test_counts import counts as exactly
from tests.records.test_rhythm import every

CALLS = "collective_calls"
DRAWN = tuple(float(place in {0, 1, 4, 6, 11, 12, 15, 20, 21}) for place in range(24))


def calls(values: tuple[float, ...]) -> Counts:
    """Counts of all-reduces, of these in each step."""
    mean, steady = rhythm_of(values).mean, len(set(values)) == 1
    return Counts(
        totals={CALLS: mean},
        details={CALLS: {"all_reduce": mean}},
        unstable={CALLS: "all_reduce varies"} if rhythm_of(values).irregular else {},
        steps=len(values),
        varying={} if steady else {CALLS: dict.fromkeys(("", "all_reduce"), components_of([values]))},
    )


STEADY = (1.0,) * 24


@pytest.mark.parametrize(
    ("then", "now", "verdict", "needed"),
    [
        pytest.param(every(5), every(5, first=3), Verdict.UNCHANGED, 0, id="another phase"),
        pytest.param(every(13), every(13, first=11), Verdict.UNCHANGED, 48, id="another phase, 2 and 1 of 24 steps"),
        pytest.param(every(5), every(4), Verdict.REGRESSED, 0, id="each 4th step in place of each 5th"),
        pytest.param(every(5), every(6, first=4), Verdict.IMPROVED, 0, id="each 6th step in place of each 5th"),
        pytest.param(every(10)[:20], every(9)[:20], Verdict.UNCHANGED, 180, id="an epoch's end cuts a period short"),
        pytest.param(every(10)[:20], every(5)[:20], Verdict.REGRESSED, 0, id="each 5th step in place of each 10th"),
        pytest.param(every(10)[:20], every(7)[:20], Verdict.UNCHANGED, 47, id="10 -> 7, each seen twice"),
        pytest.param(every(9)[:20], every(7)[:20], Verdict.UNCHANGED, 63, id="9 -> 7, each seen twice"),
        pytest.param(every(8)[:20], every(15)[:20], Verdict.UNCHANGED, 80, id="8 -> 15, each seen twice"),
        pytest.param(every(10)[:20], every(10)[1:21], Verdict.UNCHANGED, 0, id="as often, in another phase"),
        pytest.param(every(10, more=3.0), every(10, more=4.0), Verdict.REGRESSED, 0, id="4 in place of 3"),
        pytest.param(every(5), every(13), Verdict.IMPROVED, 0, id="1.2 and 1 + 2/24, which is at most 1 + 3/24"),
        pytest.param(STEADY, every(10, first=9), Verdict.REGRESSED, 0, id="new in each 10th step"),
        pytest.param(every(10, first=9), STEADY, Verdict.IMPROVED, 0, id="gone from each 10th step"),
        pytest.param(STEADY, every(13), Verdict.REGRESSED, 0, id="new, 2 of 24 steps"),
        pytest.param(STEADY, every(24), Verdict.UNCHANGED, 48, id="1 of 24 steps: none of 24 may be luck"),
        pytest.param(STEADY[:8], every(24), Verdict.UNCHANGED, 32, id="1 of 24 steps: none of 8 may be luck"),
        pytest.param(STEADY[:8], every(9), Verdict.UNCHANGED, 9, id="each 9th step may be missed in 8"),
        pytest.param((*STEADY[:17], 2.0), (*STEADY[:14], 2.0), Verdict.UNCHANGED, 0, id="1 of 18 steps and 1 of 15"),
        pytest.param(
            (*STEADY[:15], 264.0, *STEADY[:4]),
            (*(2.0,) * 15, 265.0, *(2.0,) * 4),
            Verdict.REGRESSED,
            0,
            id="one more in each step, beside 263 more in 1 of 20",
        ),
        pytest.param((*STEADY[:17], 99.0), (*(0.0,) * 14, 98.0), Verdict.UNCHANGED, 2022, id="one less in each step"),
        pytest.param((*STEADY[:17], 2.0), (*STEADY[:14], 3.0), Verdict.UNCHANGED, 37, id="2 more of 15 steps, not 1"),
        pytest.param(STEADY[:8], every(8), Verdict.REGRESSED, 0, id="each 8th step is not missed in 8"),
        pytest.param(STEADY, (2.0,) * 24, Verdict.REGRESSED, 0, id="one more in each step"),
        pytest.param(STEADY, every(2, usual=0.0, more=2.0), Verdict.UNCHANGED, 0, id="two in each 2nd step are one"),
        pytest.param(tuple(0.0 for _ in DRAWN), DRAWN, Verdict.REGRESSED, 0, id="new in 9 of 24 steps by chance"),
        pytest.param(DRAWN, DRAWN[::-1], Verdict.UNCHANGED, 0, id="as many by chance"),
    ],
)
def test_the_rates_of_periodic_work_are_compared(
    then: tuple[float, ...], now: tuple[float, ...], verdict: Verdict, needed: int
) -> None:
    before, after = calls(then), calls(now)
    assert decide_count(CALLS, before, after) is verdict
    assert change_of(CALLS, before, after)[0]
    assert steps_to_tell(CALLS, before, after) == needed


@pytest.mark.parametrize(
    ("period", "verdict", "needed"),
    [
        pytest.param(12, Verdict.REGRESSED, 0, id="evaluation in each 12th step, twice"),
        # The 7 are 1 of 24 steps to either side now, and may have been missed once in 24 steps before.
        pytest.param(24, Verdict.UNCHANGED, 48, id="evaluation once in 24 steps"),
    ],
)
def test_evaluation_and_logging_have_separate_periods(period: int, verdict: Verdict, needed: int) -> None:
    logging, evaluation = every(5, usual=0.0), every(period, usual=0.0, more=7.0)
    before, both = calls(logging), calls(evaluation)
    total = before.totals[CALLS] + both.totals[CALLS]
    after = replace(
        both,
        totals={CALLS: total},
        details={CALLS: {"all_reduce": total}},
        varying={CALLS: dict.fromkeys(("", "all_reduce"), (logging, evaluation))},
    )
    assert decide_count(CALLS, before, after) is verdict
    assert steps_to_tell(CALLS, before, after) == needed


def test_a_rate_that_may_have_changed_is_reported_with_the_steps_that_would_decide() -> None:
    result = counted(calls(every(24)), calls(STEADY))
    assert result.verdict is Verdict.UNCHANGED
    assert findings(result) == (
        (
            "may have changed: collective_calls 1 -> 2 calls in 1 of 24 steps (+1); at least 48 steps of both "
            "sides would decide (--ddpperf-counts=only --ddpperf-steps=48)"
        ),
    )


def test_a_rate_that_grew_says_how_often() -> None:
    result = counted(calls(every(4)), calls(every(5)))
    assert finding_text(result[CALLS].note) == ("all_reduce 2 calls in 1 of 5 steps -> 2 in 1 of 4 steps, 1 in others")
    assert findings(result) == ()


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [
        pytest.param((3.0, 1.0, 2.0), (2.0, 4.0, 3.0), "", id="some steps do as much as some of the other side"),
        pytest.param((3.0, 1.0, 2.0), (4.0, 8.0, 6.0), Verdict.REGRESSED, id="each step does more than any before"),
        pytest.param((4.0, 8.0, 6.0), (3.0, 1.0, 2.0), Verdict.IMPROVED, id="each step does less than any before"),
        pytest.param((3.0, 1.0, 2.0), (2.0, 7.0, 3.0), Verdict.INCONCLUSIVE, id="the mean has doubled"),
    ],
)
def test_a_count_that_varies_irregularly_is_gated_only_if_all_steps_agree(
    then: tuple[float, ...], now: tuple[float, ...], verdict: Verdict | Literal[""]
) -> None:
    result = counted(calls(now), calls(then))
    assert result[CALLS].gated is bool(verdict)
    assert result.verdict is (verdict or Verdict.NEW)  # of a result in which nothing is gated


def test_a_doubled_mean_is_a_suspect_that_times_have_to_clear() -> None:
    result = counted(calls((2.0, 7.0, 3.0)), calls((3.0, 1.0, 2.0)))
    assert finding_text(result[CALLS].note) == (
        "the count's mean has doubled, but steps vary irregularly (all_reduce varies), so only step times can "
        "show a slowdown"
    )


def test_a_mean_that_grew_by_half_is_reported_although_steps_vary() -> None:
    short, long = ([float(length * each % 97 + 100) for each in range(20)] for length in (13, 29))
    then, now = calls(tuple(short)), calls(tuple(1.5 * each for each in long))
    words = "may have changed: collective_calls 141.05 -> 221.325 calls per step (+80.275); these counts vary between "
    words += "steps, so only step times can show a slowdown"
    assert words in findings(counted(now, then))
    assert words.partition(":")[0] not in " ".join(findings(counted(calls(tuple(long)), then)))


def test_luck_of_one_rank_is_no_change() -> None:
    """The other rank does one more in each 13th step: twice in the 24 steps of the baseline, once in these."""
    before, after = (merged([calls((2.0,) * 24), calls(every(13, first=first))]) for first in (0, 11))
    assert (before.by_rank[CALLS], after.by_rank[CALLS]) == ((2.0, 1 + 2 / 24), (2.0, 1 + 1 / 24))
    assert decide_count(CALLS, before, after) is Verdict.UNCHANGED
    assert decide_count(CALLS, before, merged([calls((2.0,) * 24), calls((3.0,) * 24)])) is Verdict.REGRESSED


def test_ranks_that_ended_at_different_steps_have_the_steps_of_all() -> None:
    assert merged([calls(every(5)), calls(every(5, 23))]).steps == 23


def test_a_baseline_from_before_rates_has_counted_two_steps() -> None:
    """What comes in each 3rd step may have been missed then, and what comes in each 2nd one is new."""
    then = replace(exactly(collective_calls=1.0), details={CALLS: {"all_reduce": 1.0}})
    assert then.steps == 2
    assert decide_count(CALLS, then, calls(every(3))) is Verdict.UNCHANGED
    assert decide_count(CALLS, then, calls(every(2))) is Verdict.REGRESSED


def test_work_of_another_period_in_addition_to_the_old_is_new() -> None:
    """In ten steps, all-reduces in each 5th step, and now others in each 4th step, too."""

    def of(*components: tuple[float, ...]) -> Counts:
        mean = sum(rhythm_of(values).mean for values in components)
        varying = {CALLS: {"": components}}
        return Counts(totals={CALLS: mean}, details={}, unstable={}, steps=10, varying=varying)

    old, new = every(5, 10, usual=0.0), every(4, 10, usual=0.0)
    assert decide_count(CALLS, of(old), of(old, new)) is Verdict.REGRESSED


@pytest.mark.parametrize(
    ("new", "verdict"),
    [
        # 2 -> 2.5 in a mean step. Once in 20 steps may not have been seen before: 1/20. Of the 20 nothing is unseen.
        pytest.param(every(2, 20, usual=0.0), Verdict.REGRESSED, id="1 in each 2nd step"),
        pytest.param(every(10, 20, usual=0.0), Verdict.REGRESSED, id="1 in each 10th step, in others than the log"),
        # 3/20 more, of which 3/20 may have been missed before, and again now.
        pytest.param(every(20, 20, usual=0.0, more=3.0), Verdict.UNCHANGED, id="3 in one of 20 steps"),
    ],
)
def test_a_log_of_many_calls_that_stays_as_it_was_hides_no_new_work(new: tuple[float, ...], verdict: Verdict) -> None:
    log = every(10, 20, usual=0.0, more=20.0)
    before, after = (
        Counts(
            totals={CALLS: sum(rhythm_of(values).mean for values in components)},
            details={},
            unstable={},
            steps=20,
            varying={CALLS: {"": components}},
        )
        for components in ((log,), (log, new))
    )
    assert decide_count(CALLS, before, after) is verdict


def in_epochs(first: int, *, more: float = 0.0, one_line: bool = False) -> Counts:
    """Bytes in 20 steps of epochs of 19 steps: 4 in each fifth step and 9000 in each eighth, of one line or of two."""
    steps = [step % 19 for step in range(first, first + 20)]
    logging, evaluation = ([size * (step % each == each - 1) for step in steps] for each, size in ((5, 4.0), (8, 9e3)))
    parts = [list(map(sum, zip(logging, evaluation, strict=True)))] if one_line else [logging, evaluation]
    components, mean = components_of(parts), 100.0 + more + sum(rhythm_of(part).mean for part in parts)
    return Counts(
        totals={"collective_bytes": mean},
        details={"collective_bytes": {"all_reduce": mean}},
        unstable={"collective_bytes": "varies"} if rhythm_of_all(components).irregular else {},
        steps=20,
        varying={"collective_bytes": dict.fromkeys(("", "all_reduce"), components)},
    )


@pytest.mark.parametrize("one_line", [pytest.param(True, id="one line"), pytest.param(False, id="two lines")])
def test_new_work_in_each_step_is_red_although_two_other_periods_are_cut_by_epochs(*, one_line: bool) -> None:
    for first, second in product(range(19), repeat=2):
        before, same = (in_epochs(start, one_line=one_line) for start in (first, second))
        more = in_epochs(second, more=4.0, one_line=one_line)
        assert decide_count("collective_bytes", before, same) is Verdict.UNCHANGED
        assert decide_count("collective_bytes", before, more) is Verdict.REGRESSED


def test_new_work_in_each_step_is_reported_with_its_size() -> None:
    result = counted(in_epochs(0, more=4.0), in_epochs(4))
    assert finding_text(result["collective_bytes"].note) == (
        "all_reduce 100 B -> 104 B per step (+4 B, +4 %) in most steps"
    )
    assert findings(result) == ()


def test_more_work_in_nearly_every_step_is_no_change_if_neighbouring_steps_are_correlated() -> None:
    """A random walk: 17 of the later steps do more than most of the earlier ones."""
    early = (108, 96, 91, 94, 86, 86, 89, 82, 73, 76, 85, 81, 79, 93, 89, 85, 105, 93, 100, 84)
    late = (94, 94, 99, 94, 87, 102, 106, 115, 116, 136, 137, 127, 132, 134, 113, 112, 119, 124, 121, 110)
    then, now = (calls(tuple(map(float, side))) for side in (early, late))
    assert decide_count(CALLS, then, now) is Verdict.UNCHANGED


def test_the_usual_step_of_one_rank_shows_nothing_of_another_rank() -> None:
    shown = replace(calls((1.0,) * 9), unstable={CALLS: "one step did other work"}, varying={CALLS: {"": ()}})
    hidden = replace(shown, varying={})
    assert change_of(CALLS, shown, replace(shown, totals={CALLS: 2.0})) == (True, ANY)
    assert change_of(CALLS, merged([shown, hidden]), merged([shown, replace(hidden, totals={CALLS: 2.0})]))[0] is False


def test_usual_steps_that_are_equal_have_no_note_and_do_not_vary() -> None:
    usual = replace(calls((1.0,) * 9), unstable={CALLS: "one step did other work"}, varying={CALLS: {"": ()}})
    assert change_of(CALLS, usual, usual) == (True, None)


@pytest.mark.parametrize(
    ("now", "gated"),
    [
        pytest.param((2.0,) * 20, True, id="more in each step"),
        pytest.param((5.0, 1.0, 1.0, 1.0, 1.0) * 4, False, id="more in each fifth step"),
    ],
)
def test_the_usual_step_of_one_side_is_not_compared_with_the_mean_of_all_steps(
    now: tuple[float, ...], *, gated: bool
) -> None:
    usual = replace(calls((1.0,) * 9), unstable={CALLS: "one step did other work"}, varying={CALLS: {"": ()}})
    assert decide_count(CALLS, usual, calls(now)) is Verdict.REGRESSED
    assert change_of(CALLS, usual, calls(now))[0] is gated
